//! Invariants: five launchers, each in any of its lives' states, send any message at any time.

use proptest::prelude::*;

use super::*;
use crate::world::Assignment;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn any_name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(&NAMES[..])
}

fn any_round() -> impl Strategy<Value = Round> {
    (0_u32..6).prop_map(Round)
}

fn any_terms() -> impl Strategy<Value = Terms> {
    let seconds = prop::sample::select(vec![0, 30, 1000]);
    (1_u32..4, 0_u32..3, 1_u32..4, seconds, any::<bool>()).prop_map(
        |(min, more, unit, secs, require_uniform)| Terms {
            node_unit: unit.min(min + more),
            last_call: Duration::from_secs(secs),
            require_uniform,
            ..terms(min, min + more)
        },
    )
}

fn any_policy() -> impl Strategy<Value = Policy> {
    let host = prop::option::weighted(0.1, Just(id("a")));
    (0_u32..6, any::<bool>(), host, any::<bool>()).prop_map(|(restart_count, fails, host, has_topology)| {
        Policy {
            restart_count,
            on_give_up: if fails { OnGiveUp::FailJob } else { OnGiveUp::Replace },
            host,
            has_topology,
            ..policy()
        }
    })
}

/// One node in fifty expects another job, or has another number of workers.
fn any_request() -> impl Strategy<Value = JoinRequest> {
    let odd = || prop::bool::weighted(0.02);
    let wish = prop::option::weighted(0.4, 0_u32..4);
    let after = prop::option::of(any_round());
    (any_name(), wish, after, odd(), odd()).prop_map(|(name, wish, after, is_other_job, is_larger)| {
        // The terms are the job's, see `filled_in`.
        let terms = if is_other_job { terms(9, 9) } else { terms(0, 0) };
        let local_world_size = if is_larger { 3 } else { 2 };
        JoinRequest { wish: wish.map(NodeRank), after, local_world_size, ..request(name, &terms) }
    })
}

fn any_claim() -> impl Strategy<Value = Claim> {
    let workers_state = prop::sample::select(vec![
        WorkersState::Running,
        WorkersState::Running,
        WorkersState::Stopping,
        WorkersState::Succeeded,
    ]);
    (any_round(), 0_u32..4, 1_u32..4, workers_state).prop_map(|(round, node_rank, nodes, workers_state)| {
        Claim {
            fence: None,
            round,
            node_rank: NodeRank(node_rank),
            nodes,
            master_addr: "10.0.0.1".into(),
            master_port: PORT,
            workers_state,
        }
    })
}

fn any_event() -> impl Strategy<Value = Event> {
    let name = any_name;
    let topology = prop::sample::select(vec!["", "x p 10.0.0.3\ny p 10.0.0.1\nx p 10.0.0.2", "bad"])
        .prop_map(|text| Topology::parse(text).map_err(|error| error.to_string()));
    let end = prop_oneof![
        10 => any_round().prop_map(|round| NodeEnd::Succeeded { round }),
        1 => Just(NodeEnd::Failed { reason: REASON.into() }),
        3 => Just(NodeEnd::Left { signal: 15 }),
    ];
    prop_oneof![
        2 => name().prop_map(|name| Event::Subscribed { node: id(name) }),
        2 => name().prop_map(|name| Event::LinkBroken { node: id(name) }),
        12 => any_request().prop_map(Event::Joined),
        1 => (any_request(), any_claim()).prop_map(|(request, claim)| Event::Resumed { request, claim }),
        3 => topology.prop_map(Event::TopologyRead),
        8 => (name(), any_round()).prop_map(|(name, round)| Event::Hosted {
            node: id(name),
            round,
            master_addr: None,
            master_port: PORT,
        }),
        4 => (name(), any_round(), prop::bool::weighted(0.03)).prop_map(|(name, round, gives_up)| {
            Event::WorkersFailed { node: id(name), round, reason: REASON.into(), gives_up, has_detail: false, age: Duration::ZERO }
        }),
        4 => (name(), end).prop_map(|(name, end)| Event::NodeEnded { node: id(name), end }),
        2 => name().prop_map(|name| Event::NodeLost { node: id(name), cause: DISCONNECTED }),
        2 => name().prop_map(|name| Event::EndAcknowledged { node: id(name) }),
        1 => Just(Event::Restarted),
        3 => Just(Event::Deadline),
    ]
}

/// What the shell answers to effects, so that runs get far: the host of a round opens its store, the file is read,
/// a node that is asked to regroup joins again.
fn answer(effect: &Effect, terms: &Terms) -> Option<Event> {
    match effect {
        Effect::Push { node, push: Push::Host { round, .. } } => {
            Some(Event::Hosted { node: node.clone(), round: *round, master_addr: None, master_port: PORT })
        }
        Effect::ReadTopology => Some(Event::TopologyRead(Ok(Topology::default()))),
        Effect::Push { node, push: Push::Regroup { round, .. } } => {
            Some(Event::Joined(JoinRequest { after: Some(*round), ..request(&node.0, terms) }))
        }
        _ => None,
    }
}

fn filled_in(event: Event, terms: &Terms) -> Event {
    let fill = |request: JoinRequest| {
        let is_other_job = request.terms.max_nodes == 9;
        if is_other_job { request } else { JoinRequest { terms: terms.clone(), ..request } }
    };
    match event {
        Event::Joined(request) => Event::Joined(fill(request)),
        Event::Resumed { request, claim } => Event::Resumed { request: fill(request), claim },
        other => other,
    }
}

/// Everything that was ever promised, to hold later effects against.
#[derive(Default)]
struct Promises {
    assignments: BTreeMap<(Round, NodeRank), (NodeId, Assignment)>,
    is_finished: bool,
}

impl Promises {
    fn check(
        &mut self,
        job: &Job,
        terms: &Terms,
        event: &Event,
        effects: &[Effect],
    ) -> Result<(), TestCaseError> {
        if *event == Event::Restarted {
            self.is_finished = false;
        }
        for effect in effects {
            if self.is_finished {
                let is_answer =
                    matches!(effect, Effect::Push { push: Push::JobEnd(_), .. } | Effect::HangUp { .. });
                prop_assert!(is_answer, "after the end: {effect:?}");
            }
            match effect {
                Effect::Push { node, push: Push::Assigned(assignment) } => {
                    self.check_assignment(job, node, assignment)?
                }
                Effect::Finish { verdict } => {
                    prop_assert_eq!(job.verdict(), Some(verdict));
                    self.is_finished = true;
                }
                Effect::Forget { node } | Effect::HangUp { node } => {
                    prop_assert!(job.verdict().is_some() || !job.knows(node), "{node} is still there");
                }
                _ => {}
            }
        }
        let is_new = matches!(event, Event::Hosted { .. }) && !effects.is_empty();
        if let Some(world) = job.world().filter(|_| is_new) {
            let size = world.members.len();
            prop_assert_eq!(terms.world_of(size), Some(count(size)), "floored to the unit, within --nnodes");
        }
        if let Some((_, waiting)) = job.pending(Moment::START) {
            for node in waiting {
                prop_assert!(job.knows(node));
                // One that has succeeded and comes back nevertheless may wait and have its old assignment.
            }
        }
        Ok(())
    }

    /// A rank belongs to one node, and its assignment does not change.
    fn check_assignment(
        &mut self,
        job: &Job,
        node: &NodeId,
        assignment: &Assignment,
    ) -> Result<(), TestCaseError> {
        prop_assert!(job.knows(node));
        let known = self
            .assignments
            .entry((assignment.round, assignment.node_rank))
            .or_insert_with(|| (node.clone(), assignment.clone()));
        prop_assert_eq!((&known.0, &known.1), (node, assignment));
        let of_round = self.assignments.iter().filter(|((round, _), _)| *round == assignment.round);
        let assignments = of_round.filter(|(_, (holder, _))| holder == node).count();
        prop_assert_eq!(assignments, 1, "{} is assigned twice", node);
        prop_assert!(assignment.node_rank.0 < assignment.nodes);
        prop_assert!(assignment.first_rank + assignment.local_world_size <= assignment.world_size);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_order_of_events_keeps_the_promises_and_is_replayed_from_its_journal(
        policy in any_policy(),
        terms in any_terms(),
        events in prop::collection::vec((0_u64..20_000, any_event(), 0_u8..10), 0..120),
        crash in 0_usize..200,
    ) {
        let mut job = Job::new(policy.clone());
        let mut promises = Promises::default();
        let mut now = Moment::START;
        let mut journal = Vec::new();
        let mut snapshot = None;
        let mut answers = std::collections::VecDeque::new();
        for (millis, event, choice) in events {
            now = now + Duration::from_millis(millis);
            let event = match answers.pop_front() {
                Some(answer) if choice < 6 => answer,
                _ => filled_in(event, &terms),
            };
            if event == Event::Deadline && choice == 0 {
                now = job.deadline().map_or(now, |deadline| deadline.max(now));
            }
            let effects = job.handle(now, event.clone());
            promises.check(&job, &terms, &event, &effects)?;
            if event == Event::Deadline {
                prop_assert!(job.deadline().is_none_or(|deadline| deadline > now), "a shell would spin");
            }
            answers.extend(effects.iter().filter_map(|effect| answer(effect, &terms)));
            journal.push((now, event));
            if journal.len() == crash {
                snapshot = Some((crash, serde_json::to_string(&job).unwrap()));
            }
        }
        // From the first record, and from a snapshot.
        let journal: Vec<(Moment, Event)> =
            serde_json::from_str(&serde_json::to_string(&journal).unwrap()).unwrap();
        let (skipped, text) = snapshot.unwrap_or_else(|| (0, serde_json::to_string(&Job::new(policy.clone())).unwrap()));
        for (start, mut replayed) in [(0, Job::new(policy)), (skipped, serde_json::from_str(&text).unwrap())] {
            for (now, event) in &journal[start..] {
                let _known = replayed.handle(*now, event.clone());
            }
            prop_assert_eq!(&replayed, &job);
        }
    }
}

proptest! {
    /// Nodes that follow the master: whichever join and leave, the present ones run.
    #[test]
    fn enough_cooperating_nodes_run(
        terms in any_terms(),
        steps in prop::collection::vec((any_name(), 0_u8..4, 0_u64..40), 1..40),
    ) {
        let mut test = Test::new(Policy { restart_count: 100, ..policy() }, Terms { require_uniform: false, ..terms });
        let (least, most) = (test.terms.least() as usize, test.terms.most() as usize);
        for (name, kind, secs) in steps {
            test.now = test.now + Duration::from_secs(secs);
            let effects = match kind {
                0 if test.job.knows(&id(name)) => test.leave(name),
                1 if test.job.knows(&id(name)) => test.lose(name),
                2 | 3 if !test.job.knows(&id(name)) => test.join(name),
                _ => continue,
            };
            obey(&mut test, effects);
            // Last calls, not join timeouts.
            while let Some(due) = test.job.deadline()
                && (test.job.world().is_some() || test.job.nodes().count() >= least)
            {
                test.now = due.max(test.now);
                let effects = test.send(Event::Deadline);
                obey(&mut test, effects);
            }
            prop_assert_eq!(test.job.verdict(), None);
            let there = test.job.nodes().count();
            let expected = test.terms.world_of(there).unwrap_or_default() as usize;
            prop_assert!(expected <= most);
            prop_assert_eq!(test.job.world().map_or(0, |world| world.members.len()), expected);
        }
    }
}

/// All nodes carry out their effects, and so does the shell.
fn obey(test: &mut Test, effects: Vec<Effect>) {
    let mut answers: std::collections::VecDeque<Event> =
        effects.iter().filter_map(|effect| answer(effect, &test.terms)).collect();
    while let Some(event) = answers.pop_front() {
        let effects = test.send(event);
        answers.extend(effects.iter().filter_map(|effect| answer(effect, &test.terms)));
    }
}
