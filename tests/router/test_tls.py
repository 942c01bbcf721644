"""TLS on both sides, and certificates that change while the router runs."""

import asyncio
import shutil
import ssl
from pathlib import Path

import httpx
import pytest

from forebay_router.certificates import ServerCertificate
from forebay_router.followed import BadFileError
from tests.router.authority import Authority, serial_of, server_context
from tests.router.harness import Running, ask, chat, check_back_pressure, request_bytes, routed, running, until
from tests.router.scripted import Flood, ScriptedWorker, hello, started, workers


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def flags_of(paths: tuple[Path, Path]) -> tuple[str, ...]:
    return ("--tls-certificate", str(paths[0]), "--tls-key", str(paths[1]))


async def shown_serial(router: Running, authority: Authority) -> int:
    """Serial number of the certificate that a new connection sees."""
    client = await router.connect(authority.context())
    shown = client.writer.get_extra_info("peercert")["serialNumber"]
    await client.close()
    return int(shown, 16)


async def test_requests_and_streams_go_over_tls_like_without(authority, tmp_path):
    paths = authority.issue(tmp_path)
    async with workers(hello) as [worker], routed(worker, flags=flags_of(paths)) as router:
        client = await router.connect(authority.context())
        for stream in (False, True, False):
            await client.send(request_bytes(chat(stream=stream, padding="x" * 300_000)))
            reply = await client.read()
            assert reply.status == 200
            assert (reply.text() if stream else reply.json["choices"][0]["message"]["content"]) == "hello"
        await client.send(b"G@T / HTTP/1.1\r\n\r\n" + b"x" * 100)
        assert (await client.read()).status == 400
        assert await client.at_end()
        await client.close()


async def test_a_client_that_leaves_over_tls_ends_its_request(authority, tmp_path):
    async def hang(_asked, _wire):
        await asyncio.sleep(30)

    async with workers(hang) as [worker], routed(worker, flags=flags_of(authority.issue(tmp_path))) as router:
        client = await router.connect(authority.context())
        await client.send(request_bytes(chat(stream=True)))
        await until(lambda: worker.asked, "asked")
        client.leave()
        await until(lambda: worker.asked[0].aborted, "the worker is told")


async def test_a_slow_client_slows_the_worker_down_over_tls_too(authority, tmp_path):
    flood = Flood()
    async with workers(flood) as [worker], routed(worker, flags=flags_of(authority.issue(tmp_path))) as router:
        client = await router.connect(authority.context())
        await check_back_pressure(router, client, flood)
        await client.close()


async def test_only_http_1_1_and_tls_1_2_or_later_are_spoken(authority, tmp_path):
    async with workers(hello) as [worker], routed(worker, flags=flags_of(authority.issue(tmp_path))) as router:
        context = authority.context()
        context.set_alpn_protocols(["h2", "http/1.1"])
        client = await router.connect(context)
        assert client.writer.get_extra_info("ssl_object").selected_alpn_protocol() == "http/1.1"
        await client.close()
        old = authority.context()
        old.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        with pytest.warns(DeprecationWarning, match="TLSv1_1"):
            old.maximum_version = ssl.TLSVersion.TLSv1_1
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await router.connect(old)
        newest = authority.context()
        newest.maximum_version = ssl.TLSVersion.TLSv1_2
        client = await router.connect(newest)
        assert client.writer.get_extra_info("ssl_object").version() == "TLSv1.2"
        await client.close()


async def test_http_on_the_tls_port_disturbs_nobody(authority, tmp_path, caplog):
    async with workers(hello) as [worker], routed(worker, flags=flags_of(authority.issue(tmp_path))) as router:
        client = await router.connect()
        await client.send(request_bytes(chat()))
        assert await client.at_end()
        await client.close()
        client = await router.connect(authority.context())
        await client.send(request_bytes(chat()))
        assert (await client.read()).status == 200
        await client.close()
        assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_a_changed_certificate_is_shown_to_new_connections_and_open_ones_go_on(authority, tmp_path):
    """As Kubernetes changes a mounted Secret: by the swap of a symbolic link."""
    first, second = authority.issue(tmp_path / "..1"), authority.issue(tmp_path / "..2")
    (tmp_path / "..data").symlink_to("..1")
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(f"..data/{name}")
    flags = flags_of((tmp_path / "tls.crt", tmp_path / "tls.key"))
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        assert await shown_serial(router, authority) == serial_of(first[0])
        open_one = await router.connect(authority.context())
        (tmp_path / "..new").symlink_to("..2")
        (tmp_path / "..new").rename(tmp_path / "..data")
        (file,) = router.process.router.tools.protection.files
        await until(lambda: file.reloads == 1, "seen by itself")
        assert await shown_serial(router, authority) == serial_of(second[0])
        await open_one.send(request_bytes(chat()))
        assert (await open_one.read()).status == 200
        await open_one.close()


async def test_a_key_that_does_not_fit_leaves_the_certificate_that_works(authority, tmp_path, caplog):
    paths, other = authority.issue(tmp_path / "a"), authority.issue(tmp_path / "b")
    before = serial_of(paths[0])
    async with workers(hello) as [worker], routed(worker, flags=flags_of(paths)) as router:
        (file,) = router.process.router.tools.protection.files
        shutil.copy(other[0], paths[0])
        await file.look()
        assert (file.valid, file.failures) == (False, 1)
        assert "are no certificate and its key" in caplog.text
        assert await shown_serial(router, authority) == before
        shutil.copy(other[1], paths[1])
        await file.look()
        assert await shown_serial(router, authority) == serial_of(other[0])


async def test_the_control_port_can_show_the_same_certificate(authority, tmp_path):
    flags = (*flags_of(authority.issue(tmp_path)), "--tls-control", "on")
    async with workers(hello) as [worker], routed(worker, flags=flags) as router:
        url = router.control.replace("http:", "https:")
        async with httpx.AsyncClient(verify=authority.context()) as client:
            assert (await client.get(url + "/readyz")).text == "ok\n"
            assert 'forebay_router_file_valid{file="certificate"} 1' in (await client.get(url + "/metrics")).text


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda paths: paths[0].write_text("no certificate"), "are no certificate and its key"),
        (lambda paths: paths[1].unlink(), "tls.key: cannot be read: No such file"),
        (lambda paths: paths[0].unlink(), "tls.crt: cannot be read: No such file"),
    ],
)
def test_a_certificate_that_cannot_be_used_says_what_to_give(authority, tmp_path, spoil, says):
    paths = authority.issue(tmp_path)
    spoil(paths)
    with pytest.raises(BadFileError, match=says):
        ServerCertificate(*paths).read()


async def test_workers_are_spoken_to_over_tls_and_must_prove_who_they_are(authority, tmp_path):
    good = ScriptedWorker(hello, tls=server_context(authority.issue(tmp_path / "good")))
    bad = ScriptedWorker(hello, tls=server_context(Authority(tmp_path).issue(tmp_path / "bad")))
    async with (
        started(good, bad),
        running("--workers", good.url, bad.url, "--worker-ca-file", str(authority.certificate), ready=False) as router,
    ):
        await until(lambda: router.table.workers, "the good one is known")
        await until(lambda: router.process.discovery.failures > 2, "the bad one has been tried")
        assert [worker.spec.name for worker in router.table.workers.values()] == [good.url]
        for stream in (False, True):
            reply = await ask(router, chat(stream=stream, padding="x" * 100_000))
            assert reply.status == 200
        assert bad.asked == []


async def test_workers_certificates_may_be_made_out_to_one_name(authority, tmp_path):
    worker = ScriptedWorker(hello, tls=server_context(authority.issue(tmp_path, name="worker.internal")))
    flags = ("--worker-ca-file", str(authority.certificate), "--worker-tls-name", "worker.internal")
    async with started(worker), routed(worker, flags=flags) as router:
        assert (await ask(router, chat())).status == 200
