//! When workers are sampled.

use std::fs;

use rules::training::{HangSources, OnHang};
use tokio::time::timeout;

use super::*;

const GRACE: Duration = Duration::from_secs(1000);

fn sampler(sources: HangSources) -> (TrainingSampler, OsString) {
    let timeout = Duration::from_secs(300);
    let terms = HangTerms { timeout, grace: GRACE, sources, on_hang: OnHang::Dump };
    let mut sampler = TrainingSampler::new(Some(terms), true);
    let mut environment = sampler.prepare(1, None).remove(0);
    let (name, file) = environment.remove(0);
    assert_eq!(name, "DLROVER_PROGRESS_FILE");
    sampler.begin(Round(1));
    (sampler, file)
}

#[tokio::test]
async fn workers_that_touch_no_file_are_not_sampled_before_the_grace_period_is_over() {
    let begun = Instant::now();
    let (mut sampler, file) = sampler(HangSources::default());
    assert!(sampler.next.is_some_and(|next| next >= begun + GRACE), "{sampler:?}");
    let early = timeout(Duration::from_millis(50), sampler.due()).await;
    assert!(early.is_err());
    fs::write(file, "7").expect("the file is there");
    timeout(Duration::from_secs(60), sampler.due()).await.expect("the touch was seen");
    let Some(Event::TrainingSampled { samples, .. }) = sampler.sample() else { panic!("{sampler:?}") };
    assert_eq!(samples[0].step, Some(7));
    // From now on, once a second.
    assert!(sampler.next.is_some_and(|next| next < begun + GRACE), "{sampler:?}");
}

#[tokio::test]
async fn output_and_cpu_time_are_sampled_from_the_start() {
    let begun = Instant::now();
    let (sampler, _) = sampler(HangSources { output: true, cpu: false });
    assert!(sampler.next.is_some_and(|next| next < begun + GRACE), "{sampler:?}");
}
