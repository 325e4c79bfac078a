// Serves the skills below DIR with the TypeScript SDK.
//
//     ts_server.mjs DIR stdio|http [PORTFILE] [--reload]
//
// http: a free port of 127.0.0.1; the URL appears in PORTFILE. --reload: publish changes twice a second.
// Ends when its stdin closes, and on SIGTERM.
// The SDK comes from MOUNT_SKILLS_NODE_MODULES, or from where scripts/test-env puts it.

import fs from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import path from 'node:path';

const modules = process.env.MOUNT_SKILLS_NODE_MODULES
  ?? path.resolve(import.meta.dirname, '../../.test-env/node/node_modules');
const sdk = createRequire(path.join(modules, 'any.js'));
const { McpServer, createMcpHandler } = sdk('@modelcontextprotocol/server');
const { serveStdio } = sdk('@modelcontextprotocol/server/stdio');
const { loadSkills } = sdk('@modelcontextprotocol/server/ext/skills/node');

const [directory, mode, portFile] = process.argv.slice(2).filter(a => a !== '--reload');
const skills = await loadSkills(directory);

function newServer() {
  const server = new McpServer({ name: 'ts-skills', version: '1.0.0' }, { capabilities: { resources: { listChanged: true } } });
  skills.attach(server);
  return server;
}

let handler;
if (mode === 'stdio') {
  serveStdio(newServer);
} else {
  handler = createMcpHandler(newServer);
  const server = http.createServer(answer);
  server.listen(0, '127.0.0.1', () => {
    fs.writeFileSync(`${portFile}.new`, `http://127.0.0.1:${server.address().port}/mcp`);
    fs.renameSync(`${portFile}.new`, portFile);
  });
  process.stdin.resume();
}
process.stdin.on('end', () => setTimeout(() => process.exit(0), 100)); // first let the SDK see it

// The SDK's handler speaks the Request and Response of fetch.
async function answer(req, res) {
  const gone = new AbortController();
  res.on('close', () => gone.abort());
  const chunks = [];
  for await (const chunk of req) chunks.push(chunk);
  const reply = await handler.fetch(new Request(`http://${req.headers.host}${req.url}`, {
    method: req.method,
    headers: req.headers,
    body: chunks.length > 0 ? Buffer.concat(chunks) : undefined,
    signal: gone.signal,
  }));
  res.writeHead(reply.status, Object.fromEntries(reply.headers));
  try {
    for await (const chunk of reply.body ?? []) res.write(chunk);
  } catch {
    // The client went away in the middle of a stream.
  }
  res.end();
}

async function reload() {
  try {
    const change = await skills.reload();
    if (change.listChanged) handler?.notify.resourcesChanged();
  } catch (e) {
    console.error(`reload: ${e}`);
  }
}
if (process.argv.includes('--reload')) setInterval(reload, 500);
