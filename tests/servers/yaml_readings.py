"""How PyYAML (YAML 1.1) reads texts.

stdin: a JSON list of YAML texts. stdout: a JSON list with, for each, what its loaders read: `safe`, with
dates in ISO form, and `text`, which keeps each scalar as the text it is. A loader that refuses a text, or
reads what has no one form in JSON, such as a time, is left out.
"""

import datetime
import json
import sys

import yaml


def plain(value):
    if type(value) is datetime.date:
        return value.isoformat()
    raise TypeError(type(value))


def readings(text):
    found = {}
    for name, loader in [("safe", yaml.CSafeLoader), ("text", yaml.CBaseLoader)]:
        try:
            value = yaml.load(text, Loader=loader)
            found[name] = json.loads(json.dumps(value, default=plain, allow_nan=False))
        except (yaml.YAMLError, ValueError, TypeError):
            pass
    return found


json.dump([readings(text) for text in json.load(sys.stdin)], sys.stdout)
