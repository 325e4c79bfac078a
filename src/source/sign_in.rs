//! Logging in to a server over HTTP (OAuth 2.1), and taking a login back.
//!
//! rmcp finds out who issues tokens for the server, makes us known there, and exchanges what the
//! browser brings for tokens. What is here: the challenge that discovery starts from, the place on
//! this machine that the browser comes back to, and what is kept of it all.
//!
//! **Invariants**
//! - Nothing is sent, and no page is opened, over a connection that others can read: endpoints are
//!   https, or on this machine if the server is.
//! - An answer counts only with the `state` of this login; others are turned away, and the login
//!   goes on.
//! - No page that we show holds anything that came with a request.

use super::auth::{Login, Secret, Vault};
use super::transport::{self, with_causes};
use crate::domain::text::printable;
use http::{Request, Response, StatusCode, header};
use hyper_util::rt::TokioIo;
use reqwest::Url;
use rmcp::transport::auth::{
    AuthError, AuthorizationManager, AuthorizationMetadata, CredentialStore,
    InMemoryCredentialStore, OAuthClientConfig,
};
use std::convert::Infallible;
use std::io;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};

/// How long one request of a login or a logout may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long one connection of a browser may take, how many there may be at once, and how long
/// nobody is let in after that has failed.
const VISIT: Duration = Duration::from_secs(10);
const VISITORS: usize = 16;
const PAUSE: Duration = Duration::from_millis(50);
/// Where the browser comes back to, on a port of this machine.
const PATH: &str = "/callback";

/// What is wanted of a login.
#[derive(Debug, Default)]
pub struct Wish {
    /// The server.
    pub url: String,
    /// Who we are to whoever issues tokens, if that was arranged before.
    pub client_id: Option<String>,
    /// What goes with it.
    pub client_secret: Option<Secret>,
    /// What the tokens are to be good for; what the server asks for, if nothing is said.
    pub scopes: Vec<String>,
    /// The port that the browser comes back to; any free one, if 0.
    pub port: u16,
}

/// Why there is no login.
#[derive(Debug, thiserror::Error)]
pub enum BadSignIn {
    /// The server has nothing to log in to.
    #[error(
        "it offers no way to log in ({0}); if you have a token for it, mount with --bearer-file"
    )]
    NotOffered(String),
    /// Others could read along.
    #[error("{0} is not https, and so no place for credentials")]
    Readable(String),
    /// Something failed on the way.
    #[error("{0}")]
    Failed(String),
    /// The user, or whoever issues tokens, said no.
    #[error("it was refused: {0}")]
    Refused(String),
    /// Nobody came back in time.
    #[error("nobody logged in within {} s; try again", .0.as_secs())]
    TimedOut(Duration),
    /// No port can be had.
    #[error("no port of 127.0.0.1 can be had: {0}; try another --port")]
    Port(io::Error),
    /// The login cannot be stored.
    #[error("the login cannot be stored: {0}")]
    Kept(io::Error),
}

/// A login under way: somebody has to open a page.
pub struct SignIn {
    url: String,
    page: Url,
    state: String,
    resource: String,
    listener: TcpListener,
    manager: AuthorizationManager,
    metadata: AuthorizationMetadata,
    client: OAuthClientConfig,
    store: InMemoryCredentialStore,
}

impl std::fmt::Debug for SignIn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SignIn").finish_non_exhaustive()
    }
}

/// What the browser came back with.
#[derive(Debug, PartialEq, Eq)]
enum Callback {
    Code {
        code: String,
        issuer: Option<String>,
    },
    Refused(String),
}

impl SignIn {
    /// Finds out where one logs in, and makes us known there.
    ///
    /// # Errors
    /// There is no such place, or it cannot be used.
    pub async fn start(wish: Wish) -> Result<Self, BadSignIn> {
        let server = Url::parse(&wish.url).map_err(failed)?;
        let local = is_local(&server);
        check(&server, local)?;
        let challenge = challenge(&server).await?;
        let mut manager = AuthorizationManager::new_allowing_private_addresses(server.as_str())
            .await
            .map_err(explain)?;
        let found = manager
            .resolve_metadata_from_challenge(challenge.as_deref())
            .await
            .map_err(explain)?;
        if !found.source.is_discovered() && challenge.is_none() {
            let why = "it asks for no credentials, and names nobody who issues them";
            return Err(BadSignIn::NotOffered(why.into()));
        }
        let mut metadata = found.metadata;
        prefer_body(&mut metadata);
        for endpoint in endpoints(&metadata) {
            check(&Url::parse(endpoint).map_err(failed)?, local)?;
        }
        manager.set_metadata(metadata.clone());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, wish.port))
            .await
            .map_err(BadSignIn::Port)?;
        let port = listener.local_addr().map_err(BadSignIn::Port)?.port();
        let redirect = format!("http://127.0.0.1:{port}{PATH}");
        let scopes = match wish.scopes.is_empty() {
            true => manager.select_initial_scopes(&[]).await,
            false => wish.scopes,
        };
        let scopes: Vec<&str> = scopes.iter().map(String::as_str).collect();
        let client = match &wish.client_id {
            Some(id) => {
                let client = OAuthClientConfig::new(id, &redirect);
                let client = match &wish.client_secret {
                    Some(secret) => client.with_client_secret(secret.reveal()),
                    None => client,
                };
                manager.configure_client(client.clone()).map_err(explain)?;
                client
            }
            None => manager
                .register_client("mount-skills", &redirect, &scopes)
                .await
                .map_err(|e| match found.source.is_discovered() {
                    true => BadSignIn::Failed(format!(
                        "{}; if you are known there already, give --client-id",
                        with_causes(&e)
                    )),
                    false => BadSignIn::NotOffered(with_causes(&e)),
                })?,
        };
        let store = InMemoryCredentialStore::new();
        manager.set_credential_store(store.clone());
        let page = manager.get_authorization_url(&scopes).await;
        let page = Url::parse(&page.map_err(explain)?).map_err(failed)?;
        let of_page = |name: &str| {
            last(&page, name)
                .ok_or_else(|| BadSignIn::Failed(format!("the page to open has no {name}")))
        };
        Ok(Self {
            state: of_page("state")?,
            resource: of_page("resource")?,
            url: wish.url,
            page,
            listener,
            manager,
            metadata,
            client,
            store,
        })
    }

    /// The page that somebody has to open.
    pub fn page(&self) -> &str {
        self.page.as_str()
    }

    /// Waits until somebody has logged in there, and keeps what came of it. `pasted` are addresses
    /// that a browser on another machine ended at.
    ///
    /// # Errors
    /// Nobody did, it was refused, or it cannot be kept. What was kept before stays.
    pub async fn finish(
        self,
        vault: Arc<dyn Vault>,
        patience: Duration,
        pasted: mpsc::Receiver<String>,
    ) -> Result<(), BadSignIn> {
        let callback = comes_back(&self.listener, &self.state, pasted, VISIT);
        let callback = tokio::time::timeout(patience, callback).await;
        let (code, issuer) = match callback.map_err(|_| BadSignIn::TimedOut(patience))? {
            Callback::Code { code, issuer } => (code, issuer),
            Callback::Refused(why) => return Err(BadSignIn::Refused(why)),
        };
        self.manager
            .exchange_code_for_token_with_issuer(&code, &self.state, issuer.as_deref())
            .await
            .map_err(explain)?;
        let credentials = self.store.load().await.map_err(explain)?;
        let login = Login {
            url: self.url,
            resource: self.resource,
            client_id: self.client.client_id,
            client_secret: self.client.client_secret,
            redirect_uri: self.client.redirect_uri,
            metadata: self.metadata,
            credentials: credentials
                .ok_or_else(|| BadSignIn::Failed("there are no tokens in the answer".into()))?,
        };
        if login.access_token().is_none() {
            let why = "the token in the answer is none that HTTP can carry";
            return Err(BadSignIn::Failed(why.into()));
        }
        let kept = tokio::task::spawn_blocking(move || {
            // Not between the two halves of somebody's renewal.
            let _turn = vault.turn()?;
            login.write(vault.as_ref())
        });
        let kept = kept.await.map_err(failed)?;
        kept.map_err(BadSignIn::Kept)
    }
}

/// What became of a token that was to be taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakenBack {
    /// Nobody accepts it any longer.
    Yes,
    /// There is nobody to tell; it is good until it expires.
    NotOffered,
}

/// The server that a kept login is for.
///
/// # Errors
/// It cannot be read.
pub fn server_of(vault: &dyn Vault) -> io::Result<Option<String>> {
    Ok(Login::read(vault)?.map(|login| login.url))
}

/// Tells whoever issued the tokens of a kept login that they are not to be accepted any longer.
///
/// # Errors
/// They may still be.
pub async fn take_back(vault: &dyn Vault) -> Result<TakenBack, BadSignIn> {
    let Some(login) = Login::read(vault).map_err(BadSignIn::Kept)? else {
        return Ok(TakenBack::NotOffered);
    };
    let fields = &login.metadata.additional_fields;
    let endpoint = fields.get(REVOCATION).and_then(|v| v.as_str());
    let Some(endpoint) = endpoint else {
        return Ok(TakenBack::NotOffered);
    };
    let server = Url::parse(&login.url).map_err(failed)?;
    let endpoint = Url::parse(endpoint).map_err(failed)?;
    check(&endpoint, is_local(&server))?;
    let client = transport::client_builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(PATIENCE)
        .build()
        .map_err(unsent)?;
    let tokens = [
        ("refresh_token", login.refresh_token()),
        ("access_token", login.access_token()),
    ];
    for (kind, token) in tokens {
        let Some(token) = token else { continue };
        let mut form = vec![
            ("token", token.reveal()),
            ("token_type_hint", kind),
            ("client_id", &login.client_id),
        ];
        let mut status = revoke(&client, &endpoint, &login, &form).await?;
        let in_body = login.client_secret.is_some() && goes_in_body(&login.metadata);
        if status == StatusCode::BAD_REQUEST && !in_body {
            // The Python SDK of MCP wants the field also where there is nothing to say.
            form.push(("client_secret", ""));
            status = revoke(&client, &endpoint, &login, &form).await?;
        }
        if !status.is_success() {
            return Err(BadSignIn::Failed(format!(
                "HTTP status {}",
                status.as_u16()
            )));
        }
    }
    Ok(TakenBack::Yes)
}

/// Asks once for a token to be taken back.
async fn revoke(
    client: &reqwest::Client,
    endpoint: &Url,
    login: &Login,
    form: &[(&str, &str)],
) -> Result<StatusCode, BadSignIn> {
    let mut body = endpoint.clone();
    body.query_pairs_mut().clear().extend_pairs(form);
    let mut request = client.post(endpoint.clone());
    if let Some(secret) = &login.client_secret {
        if goes_in_body(&login.metadata) {
            body.query_pairs_mut().append_pair("client_secret", secret);
        } else {
            request = request.basic_auth(&login.client_id, Some(secret));
        }
    }
    let request = request
        .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
        .body(body.query().unwrap_or_default().to_owned());
    let reply = request.send().await;
    Ok(reply.map_err(unsent)?.status())
}

const REVOCATION: &str = "revocation_endpoint";

const METHODS: &str = "token_endpoint_auth_methods_supported";
const IN_BODY: &str = "client_secret_post";

/// Has a client's secret sent in the body where that is offered: on how it is written into a header
/// servers do not agree.
fn prefer_body(metadata: &mut AuthorizationMetadata) {
    let methods = metadata.additional_fields.get_mut(METHODS);
    if let Some(methods) = methods.and_then(|m| m.as_array_mut())
        && methods.iter().any(|m| m.as_str() == Some(IN_BODY))
    {
        methods.retain(|m| m.as_str() == Some(IN_BODY));
    }
}

/// Whether a client's secret goes into the body.
fn goes_in_body(metadata: &AuthorizationMetadata) -> bool {
    let methods = metadata.additional_fields.get(METHODS);
    let methods = methods.and_then(|m| m.as_array());
    methods.is_some_and(|m| m.iter().any(|m| m.as_str() == Some(IN_BODY)))
}

/// The last value of this name in a URL's query: ours, where the server's endpoint has one as well.
fn last(url: &Url, name: &str) -> Option<String> {
    let pairs = url.query_pairs().filter(|(n, _)| n == name);
    pairs.last().map(|(_, value)| value.into_owned())
}

/// All the places that credentials, or the user, are sent to, and who stands for them.
fn endpoints(metadata: &AuthorizationMetadata) -> impl Iterator<Item = &str> {
    [
        Some(metadata.authorization_endpoint.as_str()),
        Some(metadata.token_endpoint.as_str()),
        metadata.registration_endpoint.as_deref(),
        metadata.issuer.as_deref(),
    ]
    .into_iter()
    .flatten()
}

/// Whether a URL is of this machine.
fn is_local(url: &Url) -> bool {
    let host = url.host_str().unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|a| a.is_loopback())
}

/// Lets only URLs pass that nobody on the way can read; on this machine if the server is there.
fn check(url: &Url, local: bool) -> Result<(), BadSignIn> {
    match url.scheme() {
        "https" => Ok(()),
        "http" if local && is_local(url) => Ok(()),
        _ => {
            let shown = format!("{}://{}", url.scheme(), url.host_str().unwrap_or_default());
            Err(BadSignIn::Readable(printable(&shown, 200)))
        }
    }
}

/// What the server says to a request without credentials: none if it lets us in.
async fn challenge(server: &Url) -> Result<Option<String>, BadSignIn> {
    let client = transport::client_builder()
        .timeout(PATIENCE)
        .build()
        .map_err(unsent)?;
    let reply = client
        .post(server.clone())
        .header(header::ACCEPT, "application/json, text/event-stream")
        .header(header::CONTENT_TYPE, "application/json")
        .body(r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#)
        .send()
        .await
        .map_err(unsent)?;
    if reply.status() != StatusCode::UNAUTHORIZED {
        return Ok(None);
    }
    let values = reply.headers().get_all(header::WWW_AUTHENTICATE).iter();
    let values: Vec<&str> = values.filter_map(|v| v.to_str().ok()).collect();
    let best = values.iter().find(|v| v.contains("resource_metadata"));
    let best = best.or(values.first()).copied().unwrap_or_default();
    Ok(Some(best.to_owned()))
}

/// Waits for the answer to this login, by way of the browser or of an address that is pasted.
/// One connection may take that long.
async fn comes_back(
    listener: &TcpListener,
    state: &str,
    mut pasted: mpsc::Receiver<String>,
    visit: Duration,
) -> Callback {
    let (found, mut callbacks) = mpsc::channel(1);
    let mut paste = true;
    let places = Arc::new(Semaphore::new(VISITORS));
    loop {
        let visitor = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        tokio::select! {
            (accepted, place) = visitor => {
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let (state, found) = (state.to_owned(), found.clone());
                // Each by itself: a browser keeps connections for later.
                tokio::spawn(async move {
                    let _place = place;
                    let answer = answer(TokioIo::new(stream), state, found);
                    let _ = tokio::time::timeout(visit, answer).await;
                });
            }
            Some(callback) = callbacks.recv() => return callback,
            line = pasted.recv(), if paste => match line {
                Some(line) => {
                    let target = Url::parse(line.trim()).ok();
                    if let Some(callback) = target.and_then(|url| read(&url, state)) {
                        return callback;
                    }
                }
                None => paste = false,
            },
        }
    }
}

/// Serves one connection of a browser, to the end of the page.
async fn answer(
    stream: TokioIo<tokio::net::TcpStream>,
    state: String,
    found: mpsc::Sender<Callback>,
) {
    let callback = Mutex::new(None);
    let service = hyper::service::service_fn(async |request: Request<hyper::body::Incoming>| {
        let target = request.uri().path_and_query().map(|p| p.as_str());
        let url = Url::parse(&format!("http://127.0.0.1{}", target.unwrap_or("/")));
        let (status, said) = match url.ok().filter(|u| u.path() == PATH) {
            None => (StatusCode::NOT_FOUND, "There is nothing here."),
            Some(url) => match read(&url, &state) {
                None => (
                    StatusCode::BAD_REQUEST,
                    "This is not the answer to the login that is waiting.",
                ),
                Some(answer) => {
                    let said = match answer {
                        Callback::Code { .. } => "Done; go back to the terminal.",
                        Callback::Refused(_) => "It was refused; the terminal says more.",
                    };
                    if let Ok(mut callback) = callback.lock() {
                        *callback = Some(answer);
                    }
                    (StatusCode::OK, said)
                }
            },
        };
        Ok::<_, Infallible>(page(status, said))
    });
    let server = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .serve_connection(stream, service);
    let _ = server.await;
    // Told only now, when the page is there: the program may end soon after.
    if let Ok(Some(callback)) = callback.into_inner() {
        let _ = found.send(callback).await;
    }
}

/// A page that holds nothing but a sentence of ours.
fn page(status: StatusCode, said: &str) -> Response<String> {
    let body = format!(
        "<!doctype html><meta charset=utf-8><title>mount-skills</title><p>mount-skills: {said}</p>\n"
    );
    let mut response = Response::new(body);
    *response.status_mut() = status;
    for (name, value) in [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        let value = http::HeaderValue::from_static(value);
        response.headers_mut().insert(name, value);
    }
    response
}

/// The answer that an address holds, if it is one to the login with this state.
fn read(url: &Url, state: &str) -> Option<Callback> {
    let get = |name: &str| {
        let mut pairs = url.query_pairs();
        pairs.find(|(n, _)| n == name).map(|(_, v)| v.into_owned())
    };
    if get("state")? != state {
        return None;
    }
    if let Some(error) = get("error") {
        let more = get("error_description").unwrap_or_default();
        let text = format!("{error} {more}");
        return Some(Callback::Refused(printable(text.trim(), 200)));
    }
    Some(Callback::Code {
        code: get("code")?,
        issuer: get("iss"),
    })
}

fn failed(e: impl std::fmt::Display) -> BadSignIn {
    BadSignIn::Failed(printable(&e.to_string(), 300))
}

/// A request that got no answer. Its URL may hold a secret.
fn unsent(e: reqwest::Error) -> BadSignIn {
    BadSignIn::Failed(with_causes(&e.without_url()))
}

fn explain(e: AuthError) -> BadSignIn {
    BadSignIn::Failed(with_causes(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[test]
    fn c31_only_the_answer_to_this_login_counts() {
        let answer = |query: &str| {
            let url = Url::parse(&format!("http://127.0.0.1:1/callback?{query}"));
            read(&url.unwrap(), "abc")
        };
        let code = |issuer: Option<&str>| Callback::Code {
            code: "c d".into(),
            issuer: issuer.map(str::to_owned),
        };
        assert_eq!(answer("code=c%20d&state=abc"), Some(code(None)));
        assert_eq!(
            answer("iss=https://i&code=c+d&state=abc"),
            Some(code(Some("https://i")))
        );
        let refused = Callback::Refused("access_denied no\\u{1b}".into());
        assert_eq!(
            answer("error=access_denied&error_description=no%1b&state=abc"),
            Some(refused)
        );
        for other in [
            "",
            "code=c",
            "code=c&state=",
            "code=c&state=abd",
            "state=abc",
            "error=x",
        ] {
            assert_eq!(answer(other), None, "{other}");
        }
    }

    #[test]
    fn c31_what_an_endpoint_has_in_its_query_is_not_taken_for_ours() {
        let page = Url::parse("https://h/a?state=theirs&x=1&state=ours&resource=r").unwrap();
        assert_eq!(last(&page, "state").as_deref(), Some("ours"));
        assert_eq!(last(&page, "resource").as_deref(), Some("r"));
        assert_eq!(last(&page, "none"), None);
    }

    #[test]
    fn c31_an_issuer_is_checked_like_the_endpoints() {
        let metadata = serde_json::json!({
            "issuer": "http://issuer/", "authorization_endpoint": "https://a/",
            "token_endpoint": "https://t/",
        });
        let metadata: AuthorizationMetadata = serde_json::from_value(metadata).unwrap();
        let bad = |url: &&str| check(&Url::parse(url).unwrap(), false).is_err();
        let found: Vec<&str> = endpoints(&metadata).filter(bad).collect();
        assert_eq!(found, ["http://issuer/"]);
    }

    #[tokio::test]
    async fn c31_who_comes_and_says_nothing_keeps_no_login_waiting_for_ever() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (_paste, pasted) = mpsc::channel(1);
        let visit = Duration::from_millis(200);
        let waiting =
            tokio::spawn(async move { comes_back(&listener, "abc", pasted, visit).await });
        let mut silent = Vec::new();
        for _ in 0..VISITORS {
            silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let mut browser = tokio::net::TcpStream::connect(address).await.unwrap();
        let request = format!("GET {PATH}?code=c&state=abc HTTP/1.1\r\nHost: x\r\n\r\n");
        browser.write_all(request.as_bytes()).await.unwrap();
        let mut page = String::new();
        browser.read_to_string(&mut page).await.unwrap();
        assert!(page.starts_with("HTTP/1.1 200 "), "{page}");
        let code = Callback::Code {
            code: "c".into(),
            issuer: None,
        };
        assert_eq!(waiting.await.unwrap(), code);
    }

    #[test]
    fn c31_credentials_go_nowhere_where_others_can_read_them() {
        for (url, local, fine) in [
            ("https://h/token", false, true),
            ("https://h/token", true, true),
            ("http://h/token", true, false),
            ("http://127.0.0.1:1/token", true, true),
            ("http://[::1]:1/token", true, true),
            ("http://localhost/token", true, true),
            ("http://127.0.0.1:1/token", false, false),
            ("http://localhost.evil.example/", true, false),
            ("ftp://127.0.0.1/", true, false),
            ("file:///bin/sh", true, false),
        ] {
            let url = Url::parse(url).unwrap();
            assert_eq!(check(&url, local).is_ok(), fine, "{url} {local}");
        }
    }
}
