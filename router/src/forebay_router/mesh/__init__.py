"""What router replicas tell one another: claims on workers, and prompts they sent. Pure, but for `sockets` and `directory`.

    table, index -> outbox -> messages -> sockets  ~~~~>  sockets -> peers -> claims -> loads of the workers
                                                                        '--> prefix index

Every replica speaks to all and hears all. Nobody leads, nobody waits for an answer, and any of them may be gone the next moment;
what is told lags by `outbox.FLUSH_S` and the network. A replica alone is the same router without it.
"""
