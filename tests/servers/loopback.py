"""Shared by the Python launchers: serve an ASGI app over HTTP and never outlive the test."""

import os
import threading

import uvicorn


class Server(uvicorn.Server):
    """Says where it listens, and ends when its stdin closes: whoever started it is done or dead."""

    def __init__(self, app, port_file, tls=None):
        # Requests still open at the end are dropped.
        config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", timeout_graceful_shutdown=1)
        config.ssl_certfile = tls  # a file with the key as well
        super().__init__(config)
        self.port_file = port_file

    async def startup(self, sockets=None):
        await super().startup(sockets=sockets)
        port = self.servers[0].sockets[0].getsockname()[1]
        with open(f"{self.port_file}.new", "w") as f:
            f.write(f"{'https' if self.config.ssl_certfile else 'http'}://127.0.0.1:{port}/mcp")
        os.rename(f"{self.port_file}.new", self.port_file)
        threading.Thread(target=self.end_with_stdin, daemon=True).start()

    def end_with_stdin(self):
        while os.read(0, 4096):
            pass
        self.should_exit = True
        threading.Timer(3, os._exit, [0]).start()  # whatever still runs by then


async def serve(app, port_file):
    """Serves `app` on a free port of 127.0.0.1 and writes its URL to `port_file` once it listens."""
    await Server(app, port_file).serve()
