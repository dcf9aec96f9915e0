//! Versions of Ray.

/// Major, minor and patch number.
pub type Version = (u64, u64, u64);

/// Parses `2.52.0`, with or without `v` and with or without a suffix such as `.dev0` or `-py310`;
/// `None` if the text does not start with a version.
pub fn parse(text: &str) -> Option<Version> {
    let text = text.strip_prefix('v').unwrap_or(text);
    let mut numbers = text.splitn(3, '.').map(|part| {
        let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().ok()
    });
    let (major, minor) = (numbers.next()??, numbers.next()??);
    Some((major, minor, numbers.next().flatten().unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_may_have_a_prefix_and_a_suffix() {
        assert_eq!(parse("2.52.0"), Some((2, 52, 0)));
        assert_eq!(parse("v2.9"), Some((2, 9, 0)));
        assert_eq!(parse("2.53.0-py310"), Some((2, 53, 0)));
        assert_eq!(parse("3.0.0.dev0"), Some((3, 0, 0)));
        assert_eq!(parse("nightly"), None);
        assert_eq!(parse(""), None);
    }
}
