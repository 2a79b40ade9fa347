//! From a choice to what workers see.

use super::*;

fn arranged(
    busy: &[usize],
    taken: &[usize],
    allowed: &[usize],
    request: GpuRequest,
) -> Result<Arranged, String> {
    arrange(&matrix(A), request, allowed, set(busy), set(taken)).map_err(|error| error.to_string())
}

const FOUR: GpuRequest = GpuRequest { objective: Objective::Topology, wanted: 4, only: false };

const EVERY: [usize; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

#[test]
fn the_chosen_come_first_and_nothing_is_hidden() {
    let list = arranged(&[], &[], &EVERY, FOUR).unwrap();
    assert_eq!((list.order, list.chosen), (vec![0, 1, 2, 3, 4, 5, 6, 7], 4));
    let list = arranged(&[1], &[], &EVERY, FOUR).unwrap();
    assert_eq!((list.order, list.chosen), (vec![4, 5, 6, 7, 0, 2, 3], 4));
    assert_eq!(
        list.message,
        "GPUs 4,5,6,7 chosen from 7 free (left out: GPU 1 busy): 2 rings of direct links, about 48.4 GB/s, 5.38 times the \
         modelled bandwidth of the first free GPUs (0,2,3,4)"
    );
    let only = arranged(&[1], &[], &EVERY, GpuRequest { only: true, ..FOUR }).unwrap();
    assert_eq!(only.order, [4, 5, 6, 7]);
}

#[test]
fn busy_devices_are_excluded() {
    let list = arranged(&[1], &[4, 5, 6, 7], &EVERY, GpuRequest { wanted: 2, ..FOUR }).unwrap();
    assert_eq!(list.order, [0, 3, 2]);
    let refusal = arranged(&[1], &[4, 5, 6, 7], &EVERY, FOUR).unwrap_err();
    assert_eq!(
        refusal,
        "too few free GPUs: 4 requested, 3 free (left out: GPU 1 busy, GPUs 4,5,6,7 taken by one or more other launchers)"
    );
}

#[test]
fn the_users_own_list_bounds_the_choice_and_orders_what_follows() {
    let list = arranged(&[], &[], &[6, 2, 5, 1, 0], GpuRequest { wanted: 2, ..FOUR }).unwrap();
    assert_eq!(list.order, [1, 2, 6, 5, 0]);
    // Busy ones that the user did not allow are not mentioned.
    let list = arranged(&[7], &[4], &[0, 3], GpuRequest { wanted: 2, ..FOUR }).unwrap();
    assert!(!list.message.contains("left out"), "{}", list.message);
    assert!(list.message.ends_with("the same GPUs as by default"), "{}", list.message);
    assert!(arranged(&[], &[], &[99], GpuRequest { wanted: 1, ..FOUR }).is_err());
}

#[test]
fn all_of_a_box_are_put_in_a_ring() {
    let list = arranged(&[], &[], &EVERY, GpuRequest { wanted: 8, ..FOUR }).unwrap();
    assert_eq!(list.order, [0, 3, 2, 1, 5, 6, 7, 4]);
}
