"""Which worker has how much of a prompt in its KV cache.

content      request -> chained hashes of its prompt's blocks, without tokenising
tree         prompts' chains as a tree of runs, and who holds each run
recency      runs in the order in which they go
holders      sets of workers; engines' own block hashes -> who holds them
approximate  what this router sent where, corrected by the cached tokens that answers tell
feed         sequence numbers of one engine's KV events: gaps, replays, restarts
events       KV event batches as engines spell them
precise      what engines say they store, by token ids
audit        predicted against delivered cached tokens; which source a worker is judged by
underway     prompts sent of which no event has told yet
sharing      the start that nearly every request shares, which earns no affinity
prefix_index the two sources behind one interface
"""
