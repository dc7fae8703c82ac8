"""Decoding: one loop for every technique (lessons 01, 06-08).

Nothing is imported here: take the module you need, as in `from lessons_lib.decoding.generate import generate`.

generate            one text from one prompt: makes a row, repeats `step`
row                 `step`, the loop's body: propose, run, accept, commit
proposal, blocks    what a proposer guesses, as a tree, and what a target is fed of it
proposers           the techniques, one file each
targets             what runs rows: any transformers model, our decoder, our decoder compiled
acceptance          which guesses become text: greedy, sampling
stopping, streaming stop texts, and text as it is written
trace               a record per forward, and what follows from their counts
replay              the same counts from a recorded text, without a model
probing, timing     what lessons and benches ask and time beside texts
peers               transformers' own generate, to compare with
"""
