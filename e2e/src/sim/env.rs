use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use drowse_shared::seams::{BoxFuture, Clock, Entropy, Env, Tasks};
use jiff::{SignedDuration, Timestamp};
use tokio::{sync::oneshot, time::sleep};

use super::{host::Life, interpose::EPOCH_SECONDS, log, rng::Chance, run::said, world::World};

/// Longest delay before a blocking job runs, in milliseconds.
const JOB_MS_MAX: u64 = 2;

/// All four seams of one life of one host.
#[derive(Clone)]
pub(super) struct SimEnv {
    pub(super) world: World,
    pub(super) life: Arc<Life>,
}

impl SimEnv {
    pub(super) fn env(world: &World, life: &Arc<Life>) -> Env {
        let seams = Arc::new(Self { world: world.clone(), life: life.clone() });
        Env { net: seams.clone(), clock: seams.clone(), entropy: seams.clone(), tasks: seams }
    }
}

impl Clock for SimEnv {
    fn wall(&self) -> Timestamp {
        let start = Timestamp::from_second(EPOCH_SECONDS).unwrap_or(Timestamp::UNIX_EPOCH);
        let elapsed = SignedDuration::try_from(self.world.elapsed()).unwrap_or(SignedDuration::ZERO);
        start + elapsed + SignedDuration::from_millis(self.life.clock_off_ms)
    }
}

impl Entropy for SimEnv {
    fn fill(&self, out: &mut [u8]) {
        self.world.lock().chance(Chance::Entropy, self.life.key).fill(out);
    }
}

impl Tasks for SimEnv {
    fn spawn(&self, name: &'static str, task: BoxFuture<'static, ()>) {
        if self.life.is_dead() {
            return;
        }
        #[expect(clippy::disallowed_methods, reason = "this is the seam")]
        let handle = tokio::spawn(Task { future: Some(task), seams: self.clone(), name });
        let mut state = self.world.lock();
        if let Some(host) = state.hosts.get_mut(&self.life.host) {
            host.tasks.retain(|task| !task.is_finished());
            host.tasks.push(handle);
        }
    }

    /// Runs inline after a seeded delay, in a task of its own: it ends even if nobody waits for it.
    fn blocking(&self, name: &'static str, job: Box<dyn FnOnce() + Send>) -> BoxFuture<'static, ()> {
        let seams = self.clone();
        let (done, wait) = oneshot::channel();
        self.spawn(
            name,
            Box::pin(async move {
                let delay = seams.world.lock().chance(Chance::Job, seams.life.key).below(JOB_MS_MAX + 1);
                sleep(Duration::from_millis(delay)).await;
                // It may be the last thing this life does, or the first it does not; and it may be done unheard of.
                if seams.world.step(&seams.life, name) {
                    job();
                    if seams.world.step(&seams.life, name) {
                        let _ = done.send(());
                    }
                }
            }),
        );
        let life = self.life.clone();
        Box::pin(async move {
            let _ = wait.await;
            if life.is_dead() {
                std::future::pending::<()>().await;
            }
        })
    }
}

/// A task of one life: every poll is an effect, some polls come later, and none comes after the fall.
struct Task {
    future: Option<BoxFuture<'static, ()>>,
    seams: SimEnv,
    name: &'static str,
}

impl Future for Task {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let (world, life) = (&this.seams.world, &this.seams.life);
        world.tick();
        if !world.step(life, this.name) {
            this.future = None;
            return Poll::Ready(());
        }
        if world.defers(life) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let Some(future) = &mut this.future else { return Poll::Ready(()) };
        log::speaks(&life.host);
        let polled = catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))).unwrap_or_else(|panic| {
            world.fail(&format!("{}: task `{}` panicked: {}", life.host, this.name, said(&*panic)));
            Poll::Ready(())
        });
        if polled.is_ready() || life.is_dead() {
            this.future = None;
            return Poll::Ready(());
        }
        Poll::Pending
    }
}
