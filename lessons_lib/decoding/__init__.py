"""Decoding: one loop for every technique (lessons 01, 06-09, 11).

Nothing is imported here: take the module you need, as in `from lessons_lib.decoding.generate import generate`.

generate            one text from one prompt: makes a row, repeats `step`
row                 `step`, the loop's body: propose, run, accept, commit
proposal, blocks    what a proposer guesses, as a tree, and what a target is fed of it
proposers           the techniques, one file each
targets             what runs rows: any transformers model, our decoder, our decoder compiled
acceptance, typical which guesses become text: greedy, sampling; typical acceptance, which is not lossless
trees, tree_search  which guesses of several heads are tried together, and which tree pays for its width
detokenizer         text from tokens that come one at a time; stopping: cut before a stop text; streaming: shown
trace               a record per forward, and what follows from their counts
replay              the same counts from a recorded text, without a model
ladder              ways to decode one model, each changing one thing of another, priced before they are timed
probing, timing     what lessons and benches ask and time beside texts
peers, llamacpp     transformers' own generate, and llama.cpp, to compare with
"""
