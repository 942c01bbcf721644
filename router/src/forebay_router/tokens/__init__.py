"""A prompt in the engine's own tokens, so that KV events can be matched exactly.

template  the model's chat template: messages -> text
prompts   a request's JSON -> the text that the engine will tokenise, or that this cannot be told
encoder   text -> token ids, remembering the pieces it has seen
folder    one model's tokenizer files
tokenizer all models' tokenizers, off the loop
"""
