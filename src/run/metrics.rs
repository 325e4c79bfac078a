//! Figures for Prometheus over HTTP, for whoever is on this machine.
//!
//! **Invariant:** bound to a loopback address, and answers only who names one: a web page that
//! resolves its own name to it (DNS rebinding) gets nothing.

use super::Failure;
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, header};
use hyper::body::{Body, Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// At most this many connections at once.
const CONNECTIONS: usize = 8;
/// How long a connection may take, all in all.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long it may take to ask.
const TO_ASK: Duration = Duration::from_secs(1);
/// What is sent, whatever else a request would accept: OpenMetrics, which Prometheus reads.
const FORMAT: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Gives the figures.
pub(super) type Figures = Arc<dyn Fn() -> String + Send + Sync>;

/// An address that is listened at.
#[derive(Debug)]
pub(super) struct Listener {
    listener: TcpListener,
    /// Where the figures are.
    pub(super) url: String,
}

impl Listener {
    /// Listens.
    pub(super) async fn bind(address: SocketAddr) -> Result<Self, Failure> {
        let failed = |e| Failure::Failed(format!("--metrics {address}: {e}; name another port"));
        let listener = TcpListener::bind(address).await.map_err(failed)?;
        let url = format!("http://{}/metrics", listener.local_addr().map_err(failed)?);
        Ok(Self { listener, url })
    }

    /// Answers, for ever. If there are too many connections, the oldest goes.
    pub(super) async fn serve(self, figures: Figures) {
        let mut open = VecDeque::<JoinHandle<()>>::new();
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            };
            open.retain(|one| !one.is_finished());
            if open.len() >= CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            let figures = Arc::clone(&figures);
            open.push_back(tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let reply = answer(&request, &figures);
                    async move { Ok::<_, Infallible>(reply) }
                });
                let connection = hyper::server::conn::http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(TO_ASK)
                    .keep_alive(false)
                    .serve_connection(TokioIo::new(stream), service);
                let _ = tokio::time::timeout(PATIENCE, connection).await;
            }));
        }
    }
}

fn answer(request: &Request<Incoming>, figures: &Figures) -> Response<Whole> {
    let host = request.headers().get(header::HOST);
    let host = host.and_then(|h| h.to_str().ok()).unwrap_or_default();
    let plain = "text/plain";
    let (status, kind, text) = match (request.method(), request.uri().path()) {
        _ if !is_local(host) => {
            let text = "name this machine in Host: localhost, 127.0.0.1 or [::1]\n";
            (StatusCode::FORBIDDEN, plain, text.into())
        }
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, FORMAT, figures()),
        (_, "/metrics") => {
            let text = "only GET and HEAD\n".into();
            (StatusCode::METHOD_NOT_ALLOWED, plain, text)
        }
        _ => (StatusCode::NOT_FOUND, plain, "see /metrics\n".into()),
    };
    let mut response = Response::new(Whole(Some(text.into())));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static(kind);
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let allowed = header::HeaderValue::from_static("GET, HEAD");
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}

/// Whether a Host header names this machine by a name that nobody else can have.
fn is_local(host: &str) -> bool {
    let authority: Option<http::uri::Authority> = host.parse().ok();
    let name = authority.as_ref().map(|a| a.host()).unwrap_or_default();
    let address: Result<IpAddr, _> = name.trim_matches(['[', ']']).parse();
    name.eq_ignore_ascii_case("localhost") || address.is_ok_and(|a| a.is_loopback())
}

/// A body that is there.
struct Whole(Option<Bytes>);

impl Body for Whole {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.0.take().map(|text| Ok(Frame::data(text))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        let left = self.0.as_ref().map_or(0, Bytes::len);
        hyper::body::SizeHint::with_exact(left as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::is_local;

    #[test]
    fn only_names_of_this_machine_are_answered() {
        for good in [
            "127.0.0.1:9464",
            "localhost",
            "LocalHost:1",
            "[::1]:9",
            "127.1.2.3",
        ] {
            assert!(is_local(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "127.0.0.1.evil.example:80",
            "localhost.evil",
            "10.0.0.1",
        ] {
            assert!(!is_local(bad), "{bad}");
        }
    }
}
