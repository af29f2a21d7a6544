use drowse_node::executor::Executor;

use std::time::Duration;

use super::machine::Machine;

/// What a space can take of what all share, and which doors into the kernel it has.
#[tokio::test(flavor = "multi_thread")]
async fn root_inside_takes_its_share_of_the_kernel_and_no_more() {
    let machine = Machine::new("share").await;
    let card = machine.card("share");
    let (id, cpus) = (card.id, card.spec.cpus);
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card).await.expect("started");

    // 40 is vsock, the way to the hypervisor, which no network namespace confines.
    let sockets = "import socket as s, errno\n\
        def made(family):\n  \
          try: s.socket(family, s.SOCK_RAW if family == 16 else s.SOCK_DGRAM).close(); return 'ok'\n  \
          except OSError as e: return errno.errorcode[e.errno]\n\
        print(*[made(f) for f in (1, 2, 10, 16, 17)], *[made(f) for f in (18, 30, 38, 40, 44)])";
    let (code, text) = machine.run(id, "root", &format!("python3 -c \"{sockets}\"")).await;
    assert_eq!((code, text.trim()), (0, &*format!("{}{}", "ok ".repeat(5), ["ENOSYS"; 5].join(" "))));

    // The kernel has 4,096 terminals for everybody.
    let terminals = "import os, itertools\n\
        try:\n  \
          for n in itertools.count(): os.openpty()\n\
        except OSError: print(n)";
    let (code, text) = machine.run(id, "root", &format!("python3 -c \"{terminals}\"")).await;
    let count: u32 = text.trim().parse().expect("a number");
    assert!(code == 0 && (64..=256).contains(&count), "{count} terminals");

    // The kernel would tell which images, and so which spaces, this machine has.
    let names =
        "find -L /sys -maxdepth 6 -name backing_file -exec cat {} + 2>/dev/null; ls -A /sys/class/block/*/";
    let (_, text) = machine.run(id, "root", names).await;
    assert!(!text.contains(&id.to_string()) && !text.contains("disk.img"), "{text}");

    // What the agent does for commands counts too.
    let (quota, period) = machine.processor_ceiling(id);
    assert!(quota / period >= cpus && quota / period <= cpus + 1.0, "{quota} of {period}");

    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_full_to_the_last_inode_can_be_emptied_after_a_stop() {
    let machine = Machine::new("inodes").await;
    let mut card = machine.card("inodes");
    card.spec.disk_bytes = 64 << 20;
    let id = card.id;
    machine.oci.create(card.clone()).await.expect("created");
    machine.oci.start(card.clone()).await.expect("started");
    let fill = "import os, itertools\n\
        os.makedirs('/full', exist_ok=True)\n\
        try:\n  \
          for n in itertools.count(): open(f'/full/{os.urandom(8).hex()}', 'x')\n\
        except OSError as e: print(e.strerror)";
    // Twice: what gave way the first time has come back.
    for round in 0..2 {
        let (code, text) = machine.run(id, "root", &format!("python3 -c \"{fill}\"")).await;
        assert_eq!((code, text.as_str()), (0, "No space left on device\n"), "round {round}");
        machine.oci.stop(id, Duration::from_secs(5)).await.expect("stopped");
        machine.oci.start(card.clone()).await.expect("started though full");
    }
    let (code, text) = machine.run(id, "root", "rm -rf /full && mkdir /opt/new && echo well").await;
    assert_eq!((code, text.as_str()), (0, "well\n"));
    machine.oci.destroy(id).await.expect("destroyed");
    machine.leave().await;
}
