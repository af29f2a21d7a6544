use drowse_e2e::{fleet::Fleet, wait::eventually};
use drowse_shared::api::spaces::{Acquired, SpaceList};
use serde_json::json;

#[tokio::test]
async fn a_list_filters_pages_stably_and_names_the_silent() {
    let mut fleet = Fleet::fake(3).start().await;
    for n in 0..12 {
        let wish = json!({ "name": format!("p-{n:02}"), "metadata": { "even": (n % 2 == 0).to_string() } });
        fleet.door.call::<Acquired>("acquireSpace", wish).await.ok();
    }
    fleet.acquire("q").await;
    fleet.freeze("p-03").await;

    let all: Vec<String> = fleet.list("p-").await.iter().map(|s| s.name.to_string()).collect();
    assert_eq!(all, (0..12).map(|n| format!("p-{n:02}")).collect::<Vec<_>>());

    // Pages go on where they ended, although spaces before and after come and go meanwhile.
    let page: SpaceList = fleet.door.list(json!({ "namePrefix": "p-", "limit": 5 })).await.ok();
    assert_eq!(page.spaces.last().expect("five").name.as_str(), "p-04");
    fleet.destroy("p-00").await;
    fleet.destroy("p-07").await;
    fleet.acquire("p-055").await;
    let rest = json!({ "namePrefix": "p-", "limit": 100, "cursor": page.next_cursor.expect("more") });
    let rest: SpaceList = fleet.door.list(rest).await.ok();
    let names: Vec<_> = rest.spaces.iter().map(|s| s.name.to_string()).collect();
    assert_eq!(names, ["p-05", "p-055", "p-06", "p-08", "p-09", "p-10", "p-11"]);

    let names = |list: SpaceList| list.spaces.iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
    let frozen = fleet.door.list(json!({ "states": ["frozen"] })).await.ok();
    assert_eq!(names(frozen), ["p-03"]);
    let odd = fleet.door.list(json!({ "metadata": { "even": "false" }, "namePrefix": "p-0" })).await.ok();
    assert_eq!(names(odd), ["p-01", "p-03", "p-05", "p-09"]);

    fleet.kill("n2");
    let door = &fleet.door;
    let list = eventually("the list names n2 as silent", std::time::Duration::from_secs(5), || async {
        let list = door.list(json!({})).await.ok();
        list.silent.iter().any(|s| s.node.as_str() == "n2").then_some(list)
    })
    .await;
    assert!(!list.spaces.is_empty(), "the others still answer");
    assert!(list.spaces.iter().all(|s| s.node.as_str() != "n2"));
    fleet.end().await;
}
