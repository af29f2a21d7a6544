use drowse_e2e::{fleet::Fleet, wait::eventually};
use drowse_shared::api::{
    Code,
    spaces::{Acquired, Order, Sort, Space, SpaceList},
};
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

#[tokio::test]
async fn a_list_comes_in_any_order_page_by_page_over_all_nodes() {
    let fleet = Fleet::fake(3).start().await;
    for n in [5, 1, 8, 3, 7, 2, 6, 0, 4] {
        fleet.acquire(&format!("s-{n}")).await;
    }
    // Used again, in another order, and not written down yet.
    for n in [3, 0, 6] {
        fleet.door.turn("wakeSpace", &format!("s-{n}")).await.ok();
    }
    let whole = fleet.list("s-").await;
    let nodes: std::collections::BTreeSet<_> = whole.iter().map(|space| space.node.clone()).collect();
    assert_eq!((whole.len(), nodes.len()), (9, 3), "they are spread over all nodes");
    for sort in Sort::ALL {
        for order in Order::ALL {
            let mut expected = whole.clone();
            expected.sort_by(|a, b| order.compare(&sort.place(a), &sort.place(b)));
            for limit in [1, 2, 4, 100] {
                let (mut found, mut cursor): (Vec<Space>, _) = (Vec::new(), None);
                loop {
                    let wish = json!({ "sort": sort, "order": order, "limit": limit, "cursor": cursor });
                    let page: SpaceList = fleet.door.list(wish).await.ok();
                    assert!(page.spaces.len() <= limit && page.silent.is_empty(), "{page:?}");
                    found.extend(page.spaces);
                    cursor = page.next_cursor;
                    if cursor.is_none() {
                        break;
                    }
                }
                let names = |spaces: &[Space]| spaces.iter().map(|s| s.name.to_string()).collect::<Vec<_>>();
                assert_eq!(names(&found), names(&expected), "by {sort} {order}, {limit} a page");
            }
        }
    }
    let page: SpaceList = fleet.door.list(json!({ "limit": 2 })).await.ok();
    let other = json!({ "limit": 2, "sort": "createdAt", "cursor": page.next_cursor });
    let refused = fleet.door.list(other).await.refused(&Code::InvalidRequest);
    assert!(refused.message.contains("is of a list by name asc"), "{}", refused.message);
    fleet.end().await;
}
