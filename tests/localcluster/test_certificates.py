"""What the authorities sign is accepted where it should be, and nowhere else."""

import base64
import ipaddress
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from cryptography.x509.verification import PolicyBuilder, Store, VerificationError
from hypothesis import given
from hypothesis import strategies as st

from forebay_localcluster.certificates import Credential, Purpose, Request, build_authority, build_token_key, sign
from forebay_localcluster.kubeconfig import render_kubeconfig

NOW = datetime(2026, 11, 29, tzinfo=UTC)
AUTHORITY = build_authority("test", now=NOW)
ALICE = Request(user="alice", groups=("developers", "operators"), purpose=Purpose.CLIENT)
SERVER = Request(user="server", hosts=("127.0.0.1", "kubernetes.default.svc"), purpose=Purpose.SERVER)


def parsed(credential: Credential) -> x509.Certificate:
    return x509.load_pem_x509_certificate(credential.certificate)


def names(certificate: x509.Certificate, oid: x509.ObjectIdentifier) -> list[str]:
    return [str(attribute.value) for attribute in certificate.subject.get_attributes_for_oid(oid)]


def test_user_and_groups_are_where_kubernetes_reads_them():
    certificate = parsed(sign(AUTHORITY, ALICE, now=NOW))
    assert names(certificate, NameOID.COMMON_NAME) == ["alice"]
    assert names(certificate, NameOID.ORGANIZATION_NAME) == ["developers", "operators"]


@given(st.lists(st.from_regex(r"[a-z][a-z0-9:-]{0,60}", fullmatch=True), max_size=4, unique=True))
def test_every_group_arrives_in_its_order(groups: list[str]):
    certificate = parsed(sign(AUTHORITY, Request(user="u", groups=tuple(groups), purpose=Purpose.CLIENT), now=NOW))
    assert names(certificate, NameOID.ORGANIZATION_NAME) == groups


def verify_server(credential: Credential, host: str, *, authority: Credential, now: datetime) -> None:
    store = Store([parsed(authority)])
    subject: x509.DNSName | x509.IPAddress = x509.DNSName(host)
    if host[0].isdigit():
        subject = x509.IPAddress(ipaddress.ip_address(host))
    PolicyBuilder().store(store).time(now).build_server_verifier(subject).verify(parsed(credential), [])


@pytest.mark.parametrize("host", SERVER.hosts)
def test_a_server_is_trusted_by_each_of_its_names(host: str):
    verify_server(sign(AUTHORITY, SERVER, now=NOW), host, authority=AUTHORITY, now=NOW)


@pytest.mark.parametrize(
    ("request_", "host", "later"),
    [
        (SERVER, "elsewhere.svc", timedelta()),
        (SERVER, "127.0.0.1", timedelta(days=366)),
        (SERVER, "127.0.0.1", timedelta(days=-1)),
        (Request(user="alice", hosts=("127.0.0.1",), purpose=Purpose.CLIENT), "127.0.0.1", timedelta()),
    ],
    ids=["another name", "too late", "too early", "a client's certificate"],
)
def test_a_server_is_not_trusted_otherwise(request_: Request, host: str, later: timedelta):
    with pytest.raises(VerificationError):
        verify_server(sign(AUTHORITY, request_, now=NOW), host, authority=AUTHORITY, now=NOW + later)


def test_another_authority_s_word_does_not_count():
    with pytest.raises(VerificationError):
        verify_server(
            sign(AUTHORITY, SERVER, now=NOW), "127.0.0.1", authority=build_authority("test", now=NOW), now=NOW
        )


def test_what_is_signed_cannot_sign():
    certificate = parsed(sign(AUTHORITY, ALICE, now=NOW))
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    assert certificate.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign is False


def test_a_client_s_certificate_is_for_clients_only():
    usage = parsed(sign(AUTHORITY, ALICE, now=NOW)).extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]


def test_certificate_and_key_belong_together(tmp_path: Path):
    credential = sign(AUTHORITY, SERVER, now=NOW)
    (tmp_path / "certificate").write_bytes(credential.certificate)
    (tmp_path / "key").write_bytes(credential.key)
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tmp_path / "certificate", tmp_path / "key")


def test_the_token_key_s_halves_belong_together():
    private, public = build_token_key()
    key = serialization.load_pem_private_key(private, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == serialization.load_pem_public_key(public)


def test_a_kubeconfig_says_where_whom_to_trust_and_who_one_is():
    alice = sign(AUTHORITY, ALICE, now=NOW)
    text = render_kubeconfig(
        cluster="x", server="https://127.0.0.1:1", authority=AUTHORITY.certificate, user="alice", credential=alice
    )
    config = yaml.safe_load(text)
    assert config["current-context"] == "forebay-x"
    cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    assert cluster["server"] == "https://127.0.0.1:1"
    assert base64.b64decode(cluster["certificate-authority-data"]) == AUTHORITY.certificate
    assert base64.b64decode(user["client-certificate-data"]) == alice.certificate
    assert base64.b64decode(user["client-key-data"]) == alice.key
