"""Write a tree into a new or empty directory, where there is nothing to lose.

No program relies on the directory before it is complete. So files are created under their final
names, with their modes, in the order in which their objects lie in the store. Directories get their
modes and times once everything is in them. An existing file in the way is a failure and stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from functools import partial

from mulligan.document.document import gc_paused
from mulligan.errors import MulliganError
from mulligan.failpoints import Failpoint, FailpointHook
from mulligan.model import Digest, ObjectKind
from mulligan.objects.protocol import Objects
from mulligan.workspace.capture.file_reader import read_xattrs
from mulligan.workspace.checkout.checkout_plan import (
    CheckoutPlan,
    DirectoryNode,
    Made,
    SingleChunkFile,
)
from mulligan.workspace.checkout.file_writer import DIRECTORY, FileWriter
from mulligan.workspace.checkout.reflink import ReflinkSource
from mulligan.workspace.checkout.worker import CheckoutWorkers, start_checkout_workers
from mulligan.workspace.entries import Directory, File, Leaf, Link, to_name
from mulligan.workspace.fsync import Syncer, by_count, many
from mulligan.workspace.restore.fileops import Failure, failure, try_xattrs

_MADE = stat.S_IRWXU


class Checkout:
    """Write the content of a tree into an empty directory; ``source`` has files to reflink."""

    def __init__(
        self,
        root: bytes,
        plan: CheckoutPlan,
        objects: Objects,
        failpoint: FailpointHook,
        source: ReflinkSource | None = None,
        *,
        is_new: bool = True,
    ) -> None:
        """``is_new`` is false for a directory that existed before; its mode is left unchanged."""
        self._is_new = is_new
        self._plan = plan
        self._source = source
        self._objects = objects
        self._failpoint = failpoint
        self._root = plan.root
        self._root.handle = os.open(root, DIRECTORY & ~os.O_NOFOLLOW)
        # Default ACLs pass to new files; the workers do not handle that, so none are used then.
        inherits = read_xattrs(self._root.handle) is not None
        self._syncer = Syncer(self._unsynced, by_count(plan.count))
        self._writer = FileWriter(failpoint, self._syncer, inherits=inherits)
        self.failures: list[Failure] = []

    def run(self) -> list[Failure]:
        """Write everything, make it durable, and return what failed.

        The caller syncs the name of the directory itself.
        """
        directories = self._plan.directories
        try:
            for node, _ in directories:
                self._make_directory(node)
            self._write_single_chunk_files()
            for node, name, leaf in self._plan.leaves:
                self._make_leaf(node, name, leaf)
            self._failpoint(Failpoint.RESTORE_WRITTEN)
            # Bottom-up and after all files: creating an entry changes the parent's mtime, and a
            # read-only mode would refuse it.
            for node, entry in reversed(directories):
                self._finish_directory(node, entry)
            # Last, since a directory's sync must follow everything that was made in it.
            self._syncer.add(self._root, self._root.handle)
            self._syncer.finish()
        finally:
            self._syncer.close()
            self._writer.close()
            os.close(self._root.handle)
        return self.failures

    def _failed(self, node: DirectoryNode, name: bytes | None, error: Exception) -> None:
        path = node.path if name is None else (*node.path, to_name(name))
        self.failures.append(failure(path, error))

    def _unsynced(self, made: Made, error: OSError) -> None:
        if isinstance(made, SingleChunkFile):
            self._failed(made.node, made.name, error)
        else:
            self._failed(made, None, error)

    def _write_single_chunk_files(self) -> None:
        """Write files as their objects are read; those that fail are retried one by one."""
        files_by_digest = self._plan.single_chunk_files
        if self._source is not None:
            self._reflink_files(self._source)
        workers = None
        if not self._writer.inherits:
            workers = start_checkout_workers(self._root.handle, len(files_by_digest))
        if workers is None:
            self._write_objects(files_by_digest)
        else:
            with closing(workers):
                self._write_with(workers)
        for digest in list(files_by_digest):
            self._make_one_by_one(digest)

    def _write_with(self, workers: CheckoutWorkers) -> None:
        """Share the work with workers, if they can read the objects."""
        files_by_digest = self._plan.single_chunk_files
        with gc_paused():
            where = self._objects.locate_many(files_by_digest)
            # None for objects in memory, which no other process can read.
            if where is not None:
                workers.offer(where, files_by_digest, syncs=not many(self._root.handle))
        if where is None:
            self._write_objects(files_by_digest)
            return
        for places in workers.own():
            self._write_found(self._objects.get_at(ObjectKind.CHUNK, places))
        # Remove partial files before the retry: new files are created exclusively.
        for digest in workers.settle(files_by_digest):
            self._remove_partial(digest)

    def _remove_partial(self, digest: Digest) -> None:
        """Delete files that a worker did not finish; one that cannot be deleted fails later."""
        for target in self._plan.single_chunk_files[digest]:
            with suppress(OSError, MulliganError):
                data = self._objects.get(ObjectKind.CHUNK, digest)
                self._writer.remove_partial(target, data)

    def _write_objects(self, digests: Iterable[Digest]) -> None:
        self._write_found(self._objects.get_all(ObjectKind.CHUNK, digests))

    def _write_found(self, found: Iterable[tuple[Digest, bytes]]) -> None:
        self._writer.make_all(found, self._plan.single_chunk_files, self._file_failed)

    def _file_failed(self, target: SingleChunkFile, error: OSError) -> None:
        self._failed(target.node, target.name, error)

    def _reflink_files(self, source: ReflinkSource) -> None:
        """Reflink the files that are unchanged since their capture, while that works."""
        for digest, files in list(self._plan.single_chunk_files.items()):
            if not source.is_possible:
                return
            if all(source.has(f.node.path, f.name, _file(f, digest)) for f in files):
                self._make_one_by_one(digest)

    def _make_one_by_one(self, digest: Digest) -> None:
        for target in self._plan.single_chunk_files.pop(digest):
            self._make_leaf(target.node, target.name, _file(target, digest))

    def _make_leaf(self, node: DirectoryNode, name: bytes, leaf: Leaf) -> None:
        try:
            if isinstance(leaf, Link):
                self._make_link(node, name, leaf)
            else:
                self._make_file(node, name, leaf)
        except (OSError, MulliganError) as error:
            self._failed(node, name, error)

    def _make_file(self, node: DirectoryNode, name: bytes, file: File) -> None:
        target = SingleChunkFile(node, name, file.mode, file.mtime)
        self._writer.make(target, partial(self._bytes, node, name, file), file.xattrs)

    def _bytes(self, node: DirectoryNode, name: bytes, file: File, handle: int) -> Iterator[bytes]:
        """Yield what to write into a new file; nothing if it now shares its bytes."""
        source = self._source
        if source is not None and source.is_possible and file.chunks:
            if source.share(node.path, name, file, handle):
                return
            # A clone that failed, or turned out to be of a changed file, may have left bytes.
            os.ftruncate(handle, 0)
        for digest in file.chunks:
            yield self._objects.get(ObjectKind.CHUNK, digest)

    def _make_directory(self, node: DirectoryNode) -> None:
        if node.above is None:
            return
        try:
            # Writable for now: the final mode may forbid creating entries.
            os.mkdir(node.name, _MADE, dir_fd=self._writer.handle(node.above))
        except OSError as error:
            self._failed(node, None, error)

    def _make_link(self, node: DirectoryNode, name: bytes, link: Link) -> None:
        parent, times = self._writer.handle(node), (link.mtime, link.mtime)
        os.symlink(link.target, name, dir_fd=parent)
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _finish_directory(self, node: DirectoryNode, entry: Directory) -> None:
        try:
            handle, trouble = self._writer.handle(node), None
            if entry.xattrs or self._writer.inherits:
                trouble = try_xattrs(handle, entry.xattrs)
            # An existing target belongs to the user, who chose its mode.
            if self._is_new or node.above is not None:
                os.fchmod(handle, entry.mode)
            os.utime(handle, ns=(entry.mtime, entry.mtime))
            if node.above is not None:
                self._syncer.add(node, handle)
        except OSError as error:
            trouble = error
        if trouble is not None:
            self._failed(node, None, trouble)


def _file(target: SingleChunkFile, digest: Digest) -> File:
    return File(target.mode, target.mtime, 0, (digest,))
