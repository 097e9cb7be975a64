//! HTTP/1.1 as far as a scraper speaks it: `GET /metrics`, one answer, the connection's end.

use base::limits::METRICS_HEAD_FIELDS;

/// The meaning of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ParsedRequest {
    /// The scraper asks for the metrics.
    Metrics,
    /// The request is an error: its status line, and a field beside the usual fields.
    Refused(&'static str, &'static str),
    /// The request's head has not come whole.
    Unfinished,
}

const BAD: ParsedRequest = ParsedRequest::Refused("400 Bad Request", "");
const LONG: ParsedRequest = ParsedRequest::Refused("431 Request Header Fields Too Large", "");

/// Returns the meaning of the bytes of a request that have come; `full` is true if no more bytes
/// will be taken.
pub fn parse(bytes: &[u8], full: bool) -> ParsedRequest {
    let mut fields = [httparse::EMPTY_HEADER; METRICS_HEAD_FIELDS];
    let mut request = httparse::Request::new(&mut fields);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if full => return LONG,
        Ok(httparse::Status::Partial) => return ParsedRequest::Unfinished,
        Err(httparse::Error::TooManyHeaders) => return LONG,
        Err(_) => return BAD,
    }
    let path = request.path.unwrap_or_default();
    match (path.split('?').next(), request.method) {
        (Some("/metrics"), Some("GET")) => ParsedRequest::Metrics,
        (Some("/metrics"), _) => ParsedRequest::Refused("405 Method Not Allowed", "Allow: GET\r\n"),
        _ => ParsedRequest::Refused("404 Not Found", ""),
    }
}

/// Returns the head of the answer with the metrics. The length of the metrics is not known yet: the
/// end of the connection marks their end.
pub fn head() -> Vec<u8> {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    format!("HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n").into_bytes()
}

/// Returns the whole answer to a request that is an error.
pub fn error(status: &str, field: &str) -> Vec<u8> {
    let text = format!("{status}: metrics are at /metrics\n");
    let length = text.len();
    format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\n{field}\
         Connection: close\r\n\r\n{text}"
    )
    .into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_for_the_metrics_or_an_error() {
        let status = |text: &str| match parse(text.as_bytes(), false) {
            ParsedRequest::Refused(status, _) => &status[..3],
            ParsedRequest::Metrics => "200",
            ParsedRequest::Unfinished => "",
        };
        for (text, expected) in [
            ("GET /metrics HTTP/1.1\r\n\r\n", "200"),
            ("GET /metrics?x=y HTTP/1.0\r\nHost: a\r\nAccept: */*\r\n\r\n", "200"),
            ("\r\nGET /metrics HTTP/1.1\n\n", "200"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/ HTTP/1.1\r\n\r\n", "404"),
            ("GET http://a/metrics HTTP/1.1\r\n\r\n", "404"),
            ("", ""),
            ("GET /metrics HTTP/1.1\r\nHost: a", ""),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "400"),
            ("{\"method\":\"x\"}\0", "400"),
            ("\u{16}\u{3}\u{1}", "400"),
        ] {
            assert_eq!(status(text), expected, "{text:?}");
        }
        let many = format!("GET /metrics HTTP/1.1\r\n{}", "a: b\r\n".repeat(100));
        assert_eq!(status(&many), "431");
        assert_eq!(parse(b"GET /metrics HTTP/1.1\r\na: b", true), LONG);
    }
}
