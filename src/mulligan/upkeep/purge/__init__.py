"""Purging: remove content, such as a leaked secret, from all history.

The journal's hash chain and the digests of trees and states stay as they are. What is removed
leaves a tombstone behind, which names the purge: when, by whom and why. The steps, in this order:

1. *search*: which events, values and files hold it.
2. *bury*, in one transaction: values and events are replaced by copies without it, chunks of files
   by nothing. From its commit on, nothing of it can be read or stored again.
3. Wait for a grace period, then search again: operations that were under way may have written it.
4. *erase*: live neighbours move out of frames that hold it, and the frames are overwritten; the
   journal is compacted; caches are deleted.
5. *prove*: read every byte of every file of the store.

A purge that is interrupted before the commit has done nothing. One that is interrupted later is
unfinished, which ``status`` and ``verify`` say, and the next purge finishes it.
"""
