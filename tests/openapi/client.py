"""Generates a Python client from a server's document and compares it with the document: client.py URL FOLDER OPERATION...

TOLLGATE_TOKEN has the secret of a token with the role `write`.

Every operation must have a function of its own, every module must load, and a few functions must read real answers.
"""

import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import urllib.request

METHODS = {"get", "put", "post", "delete", "options", "head", "patch", "trace"}


def described(document):
    """The operations of the document, as (method, path)."""
    return {(method, path) for path, item in document["paths"].items() for method in item if method in METHODS}


def generated(package):
    """The operations of the client, as (method, path), by the name of their module."""
    operations = {}
    for module in sorted(package.glob("api/*/*.py")):
        if module.name == "__init__.py":
            continue
        text = module.read_text()
        method = re.search(r'"method": "(\w+)"', text).group(1)
        path = re.search(r'"url": "([^"]+)"', text).group(1)
        operations[".".join(module.relative_to(package.parent).with_suffix("").parts)] = (method, path)
    return operations


def main(url, folder, *called):
    token = os.environ["TOLLGATE_TOKEN"]
    request = urllib.request.Request(f"{url}/openapi.json", headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request) as answer:
        text = answer.read()
    source = pathlib.Path(folder, "openapi.json")
    source.write_bytes(text)
    document = json.loads(text)
    package = pathlib.Path(folder, "tollgate_client")
    tools = pathlib.Path(sys.executable).parent
    subprocess.run([tools / "openapi-spec-validator", source], check=True)
    command = ["generate", "--path", source, "--output-path", package, "--meta", "none"]
    environment = {**os.environ, "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}  # it calls ruff
    subprocess.run([tools / "openapi-python-client", *command], check=True, stdout=subprocess.PIPE, env=environment)

    operations = generated(package)
    missing = described(document) - set(operations.values())
    assert not missing, f"the client has no function for {sorted(missing)}"
    assert len(operations) == len(described(document)), f"{len(operations)} functions, {len(described(document))} operations"

    sys.path.insert(0, folder)
    modules = {name: importlib.import_module(name) for name in operations}
    client = importlib.import_module("tollgate_client").AuthenticatedClient(base_url=url, token=token)
    for name in called:
        answer = modules[f"tollgate_client.api.{name}"].sync_detailed(client=client)
        assert answer.status_code == 200 and answer.parsed is not None, f"{name}: {answer}"
    print(f"the document is valid OpenAPI, and a generated client has all {len(operations)} operations")


main(*sys.argv[1:])
