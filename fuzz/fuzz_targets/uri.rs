#![no_main]

#[path = "../../tests/it/uris/place.rs"]
mod place;
#[path = "../targets.rs"]
#[allow(dead_code)]
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    targets::uri(data);
});
