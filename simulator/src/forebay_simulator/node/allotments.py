"""What a node hands out to its pods: loopback addresses and GPUs. Plain bookkeeping, no I/O."""

import ipaddress

from forebay_simulator.node.errors import AddressesExhaustedError, DevicesExhaustedError


class AddressPool:
    """The addresses of a range; the first is the node's own.

    Addresses go round, so that one given back is the last to be used again: what still knows it by a pod that has gone
    does not meet another pod there.
    """

    def __init__(self, network: ipaddress.IPv4Network) -> None:
        self._addresses = [str(address) for address in network.hosts()]
        self.node = self._addresses[0]
        self._used = {self.node}
        self._next = 1

    def take(self, preferred: str = "") -> str:
        """An address that is free, `preferred` if it is. Raises AddressesExhaustedError."""
        if preferred in self._addresses and preferred not in self._used:
            self._used.add(preferred)
            return preferred
        for offset in range(len(self._addresses)):
            index = (self._next + offset) % len(self._addresses)
            address = self._addresses[index]
            if address not in self._used:
                self._used.add(address)
                self._next = index + 1
                return address
        raise AddressesExhaustedError(f"all {len(self._addresses)} addresses are taken: give a larger --address-range")

    def give_back(self, address: str) -> None:
        """Free an address; unknown ones are passed over."""
        self._used.discard(address)


class Devices:
    """The GPUs of a node, by index."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._holders: dict[int, str] = {}

    @property
    def free(self) -> int:
        """How many are not held."""
        return self.count - len(self._holders)

    def take(self, holder: str, count: int) -> tuple[int, ...]:
        """The lowest free ones, for a holder that has none. Raises DevicesExhaustedError."""
        if count > self.free:
            raise DevicesExhaustedError(f"{count} GPUs are asked for and {self.free} of {self.count} are free")
        indices = [index for index in range(self.count) if index not in self._holders][:count]
        self._holders.update(dict.fromkeys(indices, holder))
        return tuple(indices)

    def give_back(self, holder: str) -> None:
        """Free all that the holder has."""
        self._holders = {index: name for index, name in self._holders.items() if name != holder}
