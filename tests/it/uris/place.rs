//! From a URI to its path, said once more and with none of the program's code.

/// The place of a URI below its label, by the words of the documents alone.
pub(crate) fn path(uri: &str) -> Option<String> {
    if uri.len() > 4096 || uri.contains('?') || uri.contains('#') {
        return None;
    }
    let (scheme, rest) = uri.split_once("://")?;
    let mut letters = scheme.bytes();
    let first = letters.next().is_some_and(|b| b.is_ascii_alphabetic());
    if !first
        || scheme.len() > 254
        || !letters.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    {
        return None;
    }
    let mut names = Vec::new();
    if scheme != "skill" {
        names.push(format!("{scheme}:"));
    }
    for segment in rest.split('/') {
        let name = String::from_utf8(percent_decoded(segment)).ok()?;
        let unsafe_char =
            |c: char| c == '/' || (c as u32) < 0x20 || (0x7f..0xa0).contains(&(c as u32));
        let bad =
            matches!(&*name, "" | "." | "..") || name.len() > 255 || name.chars().any(unsafe_char);
        if bad || (names.is_empty() && name.ends_with(':')) {
            return None;
        }
        names.push(name);
    }
    let path = names.join("/");
    (names.len() <= 64 && path.len() <= 4096).then_some(path)
}

fn percent_decoded(segment: &str) -> Vec<u8> {
    let (bytes, mut out, mut at) = (segment.as_bytes(), Vec::new(), 0);
    let digit = |i: usize| bytes.get(i).and_then(|b| char::from(*b).to_digit(16));
    while let Some(byte) = bytes.get(at) {
        if let (b'%', Some(high), Some(low)) = (byte, digit(at + 1), digit(at + 2)) {
            out.push((high * 16 + low) as u8);
            at += 3;
        } else {
            out.push(*byte);
            at += 1;
        }
    }
    out
}
