//! Limits of metrics: the number of series, and the cost of a scraper.

// --- Metrics ------------------------------------------------------------------------------

/// Series of one port. 1,024 ports have 53,248 series, few for a Prometheus; without a bound a
/// hostile guest would determine the memory of Prometheus.
pub const METRICS_SERIES_A_PORT: usize = 52;

/// Tuning: bytes of one part of the metrics. The switch makes an answer as the reader takes the
/// answer.
pub const METRICS_PART_BYTES: usize = 32 << 10;

/// Scrapers at a time. One Prometheus needs one place, and two for a moment; if all places are
/// taken, the user or address with most places loses a place.
pub const METRICS_CONNECTIONS: usize = 16;

/// Bytes of a request's head. A Prometheus sends some 300.
pub const METRICS_HEAD_BYTES: usize = 8 << 10;

/// Tuning: fields in a request's head.
pub const METRICS_HEAD_FIELDS: usize = 64;

/// Time for a request's head.
pub const METRICS_HEAD_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(2);

/// Time for reading an answer: a Prometheus gives up after ten seconds by default.
pub const METRICS_READ_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);

/// Tuning: scrapers accepted between turns.
pub const METRICS_ACCEPTS: usize = 8;

/// Rules of filters whose refused frames a scrape has: those with most frames. There may be a
/// million rules.
pub const METRICS_RULES: usize = 256;
