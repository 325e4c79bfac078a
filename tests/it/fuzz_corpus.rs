//! The inputs that the fuzzer starts from, and those that it found something with, without it.

use crate::rig::project;
use crate::uris::place;
use std::fs;

#[path = "../../fuzz/targets.rs"]
mod targets;

#[test]
fn seeds_and_found_inputs_of_the_fuzz_targets_pass() {
    for (name, target) in targets::ALL {
        let dir = project().join("fuzz/seeds").join(name);
        let seeds = fs::read_dir(&dir).unwrap_or_else(|e| panic!("{name} has no seeds: {e}"));
        let (mut count, mut accepted) = (0, 0);
        for seed in seeds {
            let path = seed.unwrap().path();
            let data = fs::read(&path).unwrap();
            // The name of the input in the output of a failure.
            eprintln!("{}", path.display());
            accepted += u32::from(target(&data));
            // And cut anywhere, as a change that a fuzzer makes first.
            for end in 0..data.len().min(200) {
                target(&data[..end]);
            }
            count += 1;
        }
        assert!(
            accepted >= 3 && accepted < count,
            "{name}: {accepted} of {count} seeds are accepted"
        );
    }
    // Each file of the state is looked at.
    let load = |name: &str| {
        let seed = fs::read(project().join("fuzz/seeds/state").join(name)).unwrap();
        targets::load(&seed)
    };
    assert_eq!(load("windows").held.len(), 1);
    assert_eq!(load("verdicts").verdicts.len(), 3);
    assert_eq!(load("listing").listing.unwrap().entries.len(), 1);
    assert!(load("damaged").verdicts.is_empty());
}
