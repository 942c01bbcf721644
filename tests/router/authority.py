"""A certificate authority for tests: certificates for 127.0.0.1 or for names, as PEM files."""

import datetime as dt
import ipaddress
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _builder(subject: str, issuer: str, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(hours=1))
    )


class Authority:
    """Signs certificates that clients with `context()` trust."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        certificate = (
            _builder("tests", "tests", self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, folder: Path, *, name: str | None = None) -> tuple[Path, Path]:
        """tls.crt and tls.key in a folder, as a kubernetes.io/tls Secret has them, for a name or for 127.0.0.1."""
        key = ec.generate_private_key(ec.SECP256R1())
        general = x509.DNSName(name) if name else x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            _builder(name or "127.0.0.1", "tests", key)
            .add_extension(x509.SubjectAlternativeName([general]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        folder.mkdir(exist_ok=True, parents=True)
        paths = folder / "tls.crt", folder / "tls.key"
        paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        paths[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return paths

    def context(self) -> ssl.SSLContext:
        """A client's."""
        return ssl.create_default_context(cafile=str(self.certificate))


def serial_of(certificate: Path) -> int:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number


def server_context(paths: tuple[Path, Path]) -> ssl.SSLContext:
    """A server's, for scripted workers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*paths)
    return context
