// How the npm package `yaml` reads texts.
//
// stdin: a JSON list of YAML texts. stdout: a JSON list with, for each, its reading as YAML 1.2 (`core`) and as
// YAML 1.1 (`old`), with integers to the last digit. A version that refuses a text, or reads what JSON cannot
// say, is left out.
// The package comes from MOUNT_SKILLS_NODE_MODULES, or from where scripts/test-env puts it.

import fs from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

const modules = process.env.MOUNT_SKILLS_NODE_MODULES
  ?? path.resolve(import.meta.dirname, '../../.test-env/node/node_modules');
const { parse } = createRequire(path.join(modules, 'any.js'))('yaml');

// JSON.stringify, with big integers to the last digit and nothing that it would turn into null.
function json(value) {
  if (typeof value === 'bigint') return value.toString();
  if (typeof value === 'number' && !Number.isFinite(value)) throw new TypeError('no JSON');
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  if (value instanceof Date) return JSON.stringify(value);
  if (Array.isArray(value)) return `[${value.map(json).join()}]`;
  if (Object.getPrototypeOf(value) !== Object.prototype) throw new TypeError('no JSON');
  return `{${Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}:${json(v)}`).join()}}`;
}

function readings(text) {
  const found = [];
  for (const [name, version] of [['core', '1.2'], ['old', '1.1']]) {
    try {
      found.push(`"${name}":${json(parse(text, { version, intAsBigInt: true, logLevel: 'error' }))}`);
    } catch {
      // Left out.
    }
  }
  return `{${found.join()}}`;
}

const texts = JSON.parse(fs.readFileSync(0, 'utf8'));
process.stdout.write(`[${texts.map(readings).join()}]`);
