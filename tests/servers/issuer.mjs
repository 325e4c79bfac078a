// Issues tokens for any server that asks (OpenID Connect, by oidc-provider), to whoever says a name.
//
//     issuer.mjs PORTFILE LIFE
//
// An access token is good for LIFE seconds, its refresh token for one use. The URL, on a free port of
// 127.0.0.1, appears in PORTFILE; what was asked for in PORTFILE.log, a line for each: a grant, a revocation,
// or an error. A server asks about tokens as `server`, with the secret `SECRET-server`.
// Ends when its stdin closes, and on SIGTERM.

import fs from 'node:fs';
import http from 'node:http';
import path from 'node:path';
import { pathToFileURL } from 'node:url';

const modules = process.env.MOUNT_SKILLS_NODE_MODULES
  ?? path.resolve(import.meta.dirname, '../../.test-env/node/node_modules');
const { Provider } = await import(pathToFileURL(path.join(modules, 'oidc-provider/lib/index.js')));

const [portFile, life] = process.argv.slice(2);
const log = line => fs.appendFileSync(`${portFile}.log`, `${line}\n`);

let handle;
const listener = http.createServer((request, response) => handle(request, response));
await new Promise(resolve => listener.listen(0, '127.0.0.1', resolve));
const url = `http://127.0.0.1:${listener.address().port}`;

const provider = new Provider(url, {
  clients: [{ client_id: 'server', client_secret: 'SECRET-server', redirect_uris: [], response_types: [], grant_types: [] }],
  scopes: ['openid', 'offline_access', 'skills:read'],
  pkce: { required: () => true },
  issueRefreshToken: (_, client) => client.grantTypeAllowed('refresh_token'),
  rotateRefreshToken: true,
  ttl: { AccessToken: Number(life), Grant: 3600, Interaction: 3600, RefreshToken: 3600, Session: 3600 },
  features: {
    devInteractions: { enabled: true },
    introspection: { enabled: true },
    registration: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: () => ({ scope: 'skills:read', accessTokenFormat: 'opaque', accessTokenTTL: Number(life) }),
    },
    revocation: { enabled: true },
  },
});
provider.on('grant.success', context => log(`grant ${context.oidc.params.grant_type} for ${context.oidc.params.resource}`));
provider.on('refresh_token.destroyed', () => log('revoked'));
for (const event of ['authorization', 'grant', 'introspection', 'registration_create', 'revocation']) {
  provider.on(`${event}.error`, (_, error) => log(`error ${event}: ${error.message} ${error.error_description ?? ''}`));
}
handle = provider.callback();
fs.writeFileSync(`${portFile}.new`, url);
fs.renameSync(`${portFile}.new`, portFile);

process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
