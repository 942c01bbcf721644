"""The cluster's certificate authorities and what they sign. Pure: the time is an argument, files are written elsewhere.

There are three authorities. The cluster's signs serving certificates and the users' client certificates: a certificate's
common name is the user, its organisations are the groups (Kubernetes' X.509 authentication). etcd has one of its own,
because it knows no users: whoever holds a client certificate of its authority may read every secret. So has the front
proxy, whose word on who a caller is an aggregated API server believes.

Keys are P-256: made in a millisecond, where RSA takes a tenth of a second each.
"""

import enum
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
"""Serving certificates are renewed at each `up`."""
CLOCK_SKEW = timedelta(hours=1)


class Purpose(enum.Enum):
    """What a certificate may be used for."""

    CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
    SERVER = (ExtendedKeyUsageOID.SERVER_AUTH,)
    PEER = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(frozen=True, slots=True)
class Credential:
    """A certificate with its private key, both PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What to certify."""

    user: str
    groups: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    """Names and addresses a server answers to."""
    purpose: Purpose


def build_authority(name: str, *, now: datetime) -> Credential:
    """Make a certificate authority that signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    certificate = (
        _draft(subject, subject, key.public_key(), now=now, days=AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(identifier, critical=False)
        .sign(key, hashes.SHA256())
    )
    return Credential(certificate=_pem(certificate), key=private_pem(key))


def sign(authority: Credential, request: Request, *, now: datetime) -> Credential:
    """Make a key and certify it."""
    issuer = x509.load_pem_x509_certificate(authority.certificate)
    issuer_key = serialization.load_pem_private_key(authority.key, password=None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise TypeError(f"an authority's key is P-256, not {type(issuer_key).__name__}")
    key = ec.generate_private_key(ec.SECP256R1())
    organisations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in request.groups]
    subject = x509.Name([*organisations, x509.NameAttribute(NameOID.COMMON_NAME, request.user)])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    draft = (
        _draft(subject, issuer.subject, key.public_key(), now=now, days=LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(request.purpose.value), critical=False)
        .add_extension(identifier, critical=False)
    )
    if request.hosts:
        draft = draft.add_extension(x509.SubjectAlternativeName(_names(request.hosts)), critical=False)
    return Credential(certificate=_pem(draft.sign(issuer_key, hashes.SHA256())), key=private_pem(key))


def build_token_key() -> tuple[bytes, bytes]:
    """Make the key that signs service-account tokens; return (private, public) as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private_pem(key), public


def private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a private key as PEM, in the form Go's TLS and Kubernetes' token signer both read."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )


def _draft(
    subject: x509.Name, issuer: x509.Name, public: ec.EllipticCurvePublicKey, *, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    return [_name(host) for host in hosts]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
