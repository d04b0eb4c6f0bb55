"""A TLS context for a server, with a self-signed certificate."""

import ssl
import subprocess
from pathlib import Path


def server_context(folder: Path, name: str = "web.test") -> ssl.SSLContext:
    """Context with a new certificate for `name`, whose files lie in `folder`."""
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "certificate.pem")]
    subprocess.run([*command, *files], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate.pem", folder / "key.pem")
    return context
