"""Claims on ports and numbers are exclusive, hold between processes, and end with their holder."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay_localcluster.errors import NoFreePortError
from forebay_localcluster.ports import LOOPBACK, PORTS, Claim, claim_number, claim_ports, search_order

HOLD = """
import sys
from forebay_localcluster.ports import claim_ports
claims = claim_ports(3, name=sys.argv[1])
print(*(claim.value for claim in claims), flush=True)
sys.stdin.read()
"""


@pytest.fixture
def claims() -> Iterator[list[Claim]]:
    held: list[Claim] = []
    yield held
    for claim in held:
        claim.holder.close()


@given(st.text(max_size=20), st.integers(1, 200))
def test_the_search_visits_every_port_once(name: str, count: int):
    ports = range(1000, 1000 + count)
    assert sorted(search_order(name, ports)) == list(ports)


def test_the_search_starts_at_the_same_place_for_the_same_name():
    first = next(search_order("local", PORTS))
    assert first == next(search_order("local", PORTS))
    assert first != next(search_order("demo", PORTS))


def test_two_claims_never_share_a_port(claims: list[Claim]):
    for _ in range(2):
        claims += claim_ports(5, name="same")
    assert len({claim.value for claim in claims}) == 10
    assert {claim.value for claim in claims} < set(PORTS)


def test_a_claimed_port_can_be_listened_on(claims: list[Claim]):
    claims += claim_ports(1, name="x")
    with socket.create_server((LOOPBACK, claims[0].value)):
        pass


def test_a_port_that_someone_listens_on_is_passed_over(claims: list[Claim]):
    taken = claim_ports(1, name="busy")[0]
    with socket.create_server((LOOPBACK, taken.value)):
        taken.holder.close()
        claims += claim_ports(1, name="busy")
        assert claims[0].value != taken.value


def test_a_claim_that_ended_is_free_again(claims: list[Claim]):
    first = claim_ports(1, name="again")[0]
    first.holder.close()
    claims += claim_ports(1, name="again")
    assert claims[0].value == first.value


def test_a_killed_holder_s_claim_ends_with_it(claims: list[Claim]):
    with subprocess.Popen([sys.executable, "-c", HOLD, "killed"], stdin=-1, stdout=-1, text=True) as holder:
        assert holder.stdout
        theirs = {int(port) for port in holder.stdout.readline().split()}
        claims += claim_ports(3, name="killed")
        assert not theirs & {claim.value for claim in claims}
        os.kill(holder.pid, signal.SIGKILL)
    claims += claim_ports(3, name="killed")
    assert theirs == {claim.value for claim in claims[3:]}


def test_running_out_of_ports_is_told_and_leaves_no_claim(monkeypatch: pytest.MonkeyPatch, claims: list[Claim]):
    monkeypatch.setattr("forebay_localcluster.ports.PORTS", range(29_990, 29_993))
    with pytest.raises(NoFreePortError, match="fewer than 5 free ports between 29990 and 29992"):
        claim_ports(5, name="x")
    claims += claim_ports(2, name="x")
    assert len(claims) == 2


def test_numbers_differ_while_they_are_held(claims: list[Claim]):
    claims += [claim_number(), claim_number()]
    assert claims[0].value != claims[1].value
