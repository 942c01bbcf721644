"""A simulated vLLM engine: the wire contract of vLLM 0.32 without a GPU.

`scheduler` is a pure library under a virtual clock (the fleet simulator runs thousands of them); `core` drives one
scheduler by the clock of an event loop; `server`, `routes` and `responses` put it behind vLLM's HTTP interface;
`transfer` and `side_channel` are the prefill/decode hand-over; `kv_events` publishes what the prefix cache holds.
The process is `forebay-engine serve MODEL`, with the command line of `vllm serve`.
"""
