//! `mount-skills serve DIR`: an MCP Skills server for a directory of skills, over rmcp's
//! [`SkillCatalog`].
//!
//! It is what a directory given to `--server` is served by, and it is useful by itself. The
//! catalog holds all bytes in memory and changes only on a reload, so that listing and content
//! always fit each other.

use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use notify::{RecursiveMode, Watcher};
use rmcp::handler::server::skill_catalog::SkillCatalog;
use rmcp::model::{
    ErrorData, GetSkillRequestParams, GetSkillResult, Implementation, ListResourcesResult,
    ListSkillsResult, PaginatedRequestParams, ReadResourceDirectoryRequestParams,
    ReadResourceDirectoryResult, ReadResourceRequestParams, ReadResourceResponse,
    ServerCapabilities, ServerConfig,
};
use rmcp::service::{RequestContext, RoleServer};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;

/// Changes on disk that follow each other this closely are one reload.
const SETTLE: Duration = Duration::from_millis(200);
/// For how long a listing holds that never changes, in milliseconds: without it, whoever looks asks
/// for all of it again every second.
const STILL_MS: u64 = 3_600_000;

/// What to serve, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// The directory with the skills.
    pub dir: PathBuf,
    /// An address to serve HTTP on, instead of stdio.
    pub http: Option<SocketAddr>,
    /// Whether changes on disk are followed.
    pub watch: Watch,
}

/// Whether changes on disk are followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    /// The skills stay as they are now.
    No,
    /// A change reloads the catalog.
    Yes,
}

#[derive(Clone)]
struct Server {
    skills: Arc<SkillCatalog>,
    watch: Watch,
}

impl Server {
    fn listing(&self) -> ListSkillsResult {
        let listing = self.skills.list_skills();
        match self.watch {
            Watch::No => listing.with_ttl_ms(STILL_MS),
            Watch::Yes => listing,
        }
    }
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_resources()
            .enable_skills_with_directory_read()
            .build();
        let mut config = ServerConfig::new(capabilities);
        config.server_info = Implementation::new("mount-skills serve", env!("CARGO_PKG_VERSION"));
        config
    }

    async fn list_skills(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListSkillsResult, ErrorData> {
        Ok(self.listing())
    }

    async fn get_skill(
        &self,
        request: GetSkillRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetSkillResult, ErrorData> {
        self.skills.get_skill(&request.uri)
    }

    async fn read_resource_directory(
        &self,
        request: ReadResourceDirectoryRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceDirectoryResult, ErrorData> {
        self.skills.read_resource_directory(&request.uri)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        Ok(ListResourcesResult::with_all_items(self.skills.resources()))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        self.skills
            .read_resource(&request.uri)
            .map(Into::into)
            .ok_or_else(|| ErrorData::resource_not_found(request.uri, None))
    }
}

/// Serves until stdin closes, or, over HTTP, until the process is ended. `ready` is called with
/// the URL once it listens.
///
/// # Errors
/// The directory cannot be read, or the address cannot be bound.
pub async fn serve(options: Options, ready: impl FnOnce(&str)) -> io::Result<()> {
    let dir = options.dir.clone();
    let catalog = tokio::task::spawn_blocking(move || SkillCatalog::from_dir(dir)).await?;
    let skills = Arc::new(catalog.map_err(io::Error::other)?);
    let _watcher = match options.watch {
        Watch::Yes => Some(watch(&options.dir, Arc::clone(&skills))?),
        Watch::No => None,
    };
    let server = Server {
        skills,
        watch: options.watch,
    };
    match options.http {
        None => {
            let running = server
                .serve(rmcp::transport::stdio())
                .await
                .map_err(io::Error::other)?;
            running.waiting().await?;
        }
        Some(address) => {
            let listener = TcpListener::bind(address).await?;
            ready(&format!("http://{}/mcp", listener.local_addr()?));
            serve_http(listener, server).await;
        }
    }
    Ok(())
}

async fn serve_http(listener: TcpListener, server: Server) {
    let service = StreamableHttpService::new(
        move || Ok(server.clone()),
        Arc::<LocalSessionManager>::default(),
        StreamableHttpServerConfig::default(),
    );
    loop {
        // One connection that cannot be accepted is no reason to stop; a moment's pause keeps a
        // lack of descriptors from becoming a busy loop.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            let connection = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service);
            if let Err(e) = connection.await {
                tracing::debug!("an HTTP connection ended: {e}");
            }
        });
    }
}

/// Reloads the catalog after changes below a directory, for as long as the watcher lives.
fn watch(dir: &Path, skills: Arc<SkillCatalog>) -> io::Result<impl Watcher + use<>> {
    let (changed, changes) = std::sync::mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
        // Reading the files is an event too, and reloading reads them.
        if event.is_ok_and(|e| !e.kind.is_access()) {
            let _ = changed.send(());
        }
    })
    .map_err(io::Error::other)?;
    watcher
        .watch(dir, RecursiveMode::Recursive)
        .map_err(io::Error::other)?;
    std::thread::Builder::new()
        .name("reload".into())
        .spawn(move || {
            while changes.recv().is_ok() {
                while changes.recv_timeout(SETTLE).is_ok() {}
                if let Err(e) = skills.reload() {
                    tracing::warn!("the skills cannot be reloaded, the earlier ones stay: {e}");
                }
            }
        })?;
    Ok(watcher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_holds_if_nobody_follows_the_directory() {
        let dir = tempfile::tempdir().unwrap();
        let server = |watch| Server {
            skills: Arc::new(SkillCatalog::from_dir(dir.path()).unwrap()),
            watch,
        };
        assert_eq!(server(Watch::No).listing().ttl_ms, Some(STILL_MS));
        assert_eq!(server(Watch::Yes).listing().ttl_ms, None);
    }
}
