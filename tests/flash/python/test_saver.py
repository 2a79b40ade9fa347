"""Saves and loads through a socket: whole ones, refusals, and a saver that does not behave. Without torch."""

import fcntl
import os
import signal
import socket
import threading
import time
import unittest

from reference_saver import FAULTS
from support import ClientTest, same

from dlrover_run.flash_checkpoint import DdpCheckpointer, FlashCheckpointError, NothingLoads, StorageType
from dlrover_run.flash_checkpoint import call_lock, connection, errors, saver as saver_module

STATE = {"step": 1, "odd": {1, 2}, "text": "x" * 1000}


class Saves(ClientTest):
    def test_what_was_saved_is_loaded(self):
        self.saver()
        checkpointer = DdpCheckpointer(self.folder)
        self.assertEqual(checkpointer.load_checkpoint(), {})
        self.assertEqual(checkpointer.last_load.source, "none")
        for step in range(5):
            result = checkpointer.save_checkpoint(step, dict(STATE, step=step), storage_type=StorageType.MEMORY)
            self.assertTrue(result, result)
            self.assertEqual((result.step, result.error), (step, None))
        same(dict(STATE, step=4), checkpointer.load_checkpoint())
        self.assertEqual(checkpointer.last_load[:2], ("memory", 4))
        # The same slots serve it.
        self.assertTrue(checkpointer.save_checkpoint(9, STATE, storage_type=StorageType.MEMORY))

    def test_a_state_that_grows_gets_larger_slots(self):
        self.saver()
        checkpointer = DdpCheckpointer(self.folder)
        for size in (10, 100000, 3000000):
            state = {"text": "x" * size}
            self.assertTrue(checkpointer.save_checkpoint(size, state, storage_type=StorageType.MEMORY))
            same(state, checkpointer.load_checkpoint())

    def test_two_checkpointers_for_one_folder_are_noticed(self):
        self.saver()
        one, other = DdpCheckpointer(self.folder), DdpCheckpointer(self.folder)
        small, large = {"text": "x"}, {"text": "x" * 100000}
        for step in range(2):
            self.assertTrue(one.save_checkpoint(step, small, storage_type=StorageType.MEMORY))
        self.assertTrue(other.save_checkpoint(2, large, storage_type=StorageType.MEMORY))
        result = one.save_checkpoint(3, small, storage_type=StorageType.MEMORY)
        self.assertIn("another checkpointer of this process saved another state", result.error)
        # Also when the other one is gone.
        self.assertTrue(one.save_checkpoint(4, small, storage_type=StorageType.MEMORY))

    def test_slots_are_given_back_before_larger_ones_are_asked_for(self):
        files = set()

        def mapped():
            """Mappings of files that this saver has given."""
            with open("/proc/self/maps") as file:
                return sum(line.split()[4] in files for line in file)

        saver, found = self.reference(), []
        alloc = saver._alloc

        def count(*arguments):
            found.append(mapped())
            answer, descriptors = alloc(*arguments)
            files.update(str(os.fstat(descriptor).st_ino) for descriptor in descriptors)
            return answer, descriptors

        saver._alloc = count
        checkpointer = DdpCheckpointer(self.folder)
        for size in (10, 1000000, 6000000):
            self.assertTrue(checkpointer.save_checkpoint(size, {"text": "x" * size}))
            self.assertEqual(mapped(), 3)
        # Their memory would count.
        self.assertEqual(found, [0, 0, 0])
        saver.allowance = 1
        self.assertTrue(checkpointer.save_checkpoint(1, {"text": "x" * 20000000}))
        self.assertSaid("too large")
        self.assertEqual(mapped(), 0)
        saver.allowance = 1 << 30
        self.assertTrue(checkpointer.save_checkpoint(1, {"text": "x" * 20000000}, storage_type=StorageType.MEMORY))
        self.assertEqual(found, [0] * 5)

    def test_what_is_asked_for_is_what_the_saver_gets(self):
        saver = self.reference()
        os.environ.update(RANK="5", WORLD_SIZE="8", LOCAL_RANK="1", LOCAL_WORLD_SIZE="4", GROUP_RANK="1")
        os.environ.update(DLROVER_ROUND="3", TORCHELASTIC_RUN_ID="job")
        from dlrover_run.flash_checkpoint import KeepLatestStepStrategy

        reader = DdpCheckpointer(self.folder + "/../" + os.path.basename(self.folder))
        self.assertTrue(reader.save_checkpoint(1, STATE))
        self.assertEqual(saver.requests, [])
        reader.load_checkpoint()
        os.environ.update(RANK="4", LOCAL_RANK="0")
        writer = DdpCheckpointer(self.folder, deletion_strategy=KeepLatestStepStrategy(3, self.folder))
        writer.save_checkpoint(7, STATE, "a/b.pt")
        expected = dict(
            type="hello",
            v=1,
            run_id="job",
            dir=self.folder,
            rank=5,
            world=8,
            local_rank=1,
            shard=0,
            n_shards=1,
            replicated=True,
            role="reader",
            round=3,
            format="pt",
            keep=None,
            replicas=0,
        )
        self.assertEqual(saver.hellos[0], expected)
        expected.update(rank=4, local_rank=0, role="writer", keep={"latest": 3})
        self.assertEqual(saver.hellos[1], expected)
        commit = saver.requests[-1]
        self.assertEqual(
            {name: commit[name] for name in ("step", "storage", "path", "writes_disk")},
            # Another node writes the same state to disk.
            {"step": 7, "storage": "disk", "path": os.path.abspath("a/b.pt"), "writes_disk": False},
        )

    def test_superseded_steps_are_named(self):
        saver = self.reference()
        saver.disk_is_busy = True
        checkpointer = DdpCheckpointer(self.folder)
        results = [checkpointer.save_checkpoint(step, STATE) for step in range(6)]
        self.assertTrue(all(results))
        self.assertEqual([len(result.superseded) for result in results], [0, 0, 0, 1, 1, 1])
        gone = [step for result in results for step in result.superseded]
        # Never the same one twice, and never the newest.
        self.assertEqual(len(set(gone)), 3)
        self.assertTrue(all(step < result.step - 1 for result in results for step in result.superseded), results)
        self.assertFalse(checkpointer.wait_latest_checkpoint(timeout=1))
        self.assertSaid("step 5 is not on disk: it was not written within 1 s")
        saver.disk_is_busy = False
        self.assertTrue(checkpointer.wait_latest_checkpoint(timeout=1))

    def test_wrong_arguments_raise(self):
        checkpointer = DdpCheckpointer(self.folder)
        for step in ("1", 1.5, None):
            with self.assertRaisesRegex(TypeError, "step is .*; expected a whole number"):
                checkpointer.save_checkpoint(step, STATE)
        for step in (-1, 1 << 53):
            with self.assertRaisesRegex(ValueError, "expected 0 to"):
                checkpointer.save_checkpoint(step, STATE)
        with self.assertRaisesRegex(ValueError, "storage_type is 'disk'"):
            checkpointer.save_checkpoint(1, STATE, storage_type="disk")
        with self.assertRaisesRegex(ValueError, "save_timeout is 0"):
            DdpCheckpointer(self.folder, save_timeout=0)
        with self.assertRaisesRegex(ValueError, "on_error is 'x'"):
            DdpCheckpointer(self.folder, on_error="x")

    def test_prepare_leaves_nothing_to_the_first_save(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder)
        checkpointer.prepare(STATE)
        self.assertTrue(checkpointer.save_checkpoint(1, STATE))
        self.assertEqual([request["type"] for request in saver.requests], ["hello", "alloc", "begin", "commit"])


class Refusals(ClientTest):
    def save(self, storage_type=StorageType.DISK, **options):
        return DdpCheckpointer(self.folder, **options).save_checkpoint(1, STATE, storage_type=storage_type)

    def test_busy_and_others_are_told(self):
        saver = self.reference()
        for code in ("busy", "invalid", "stale_round", "a new one"):
            saver.errors["begin"] = code, {}
            result = self.save()
            self.assertFalse(result)
            text = "step 1 is not saved: the saver rejected the request: the test says so (%s)" % code
            self.assertIn(text, result.error)
            self.assertSaid("(%s)" % code)
        with self.assertRaisesRegex(FlashCheckpointError, "the test says so"):
            self.save(on_error="raise")
        # Nothing else is written instead: another process may be in charge.
        self.assertEqual(os.listdir(self.folder), [])

    def test_without_memory_only_saves_for_the_disk_are_kept(self):
        saver = self.reference(allowance=1)
        result = self.save(StorageType.MEMORY)
        self.assertFalse(result)
        self.assertIn("too large; give the container more memory, or raise --flash-ckpt-memory (no_memory)", result.error)
        result = self.save()
        self.assertTrue(result, result)
        self.assertSaid("written to disk by the training process")
        self.assertEqual(saver.written_alone, [(self.folder, 1, None)])
        os.environ["GROUP_RANK"] = "1"
        # Another node writes it, and tells the job.
        self.assertTrue(self.save())
        self.assertEqual(len(saver.written_alone), 1)

    def test_a_job_that_cannot_be_told_is_said_and_the_save_counts(self):
        saver = self.reference(allowance=1)
        saver.errors["written_alone"] = ("stale_round", {})
        self.assertTrue(self.save())
        self.assertSaid("but the job master could not be informed: the test says so (stale_round)")

    def test_hello_is_repeated_until_the_writer_before_is_gone(self):
        saver = self.reference()
        saver.errors["hello"] = "writer_exists", {}
        threading.Timer(0.5, saver.errors.clear).start()
        self.assertTrue(self.save())
        saver.errors["hello"] = "writer_exists", {}
        result = self.save(save_timeout=0.5)
        self.assertFalse(result)
        self.assertIn("writer_exists", result.error)

    def test_a_load_that_must_not_start_from_nothing_raises(self):
        saver = self.reference()
        saver.errors["load"] = "nothing_loads", {}
        with self.assertRaisesRegex(NothingLoads, "the test says so"):
            DdpCheckpointer(self.folder).load_checkpoint()
        saver.errors["load"] = "stale_round", {}
        with self.assertRaisesRegex(FlashCheckpointError, "the test says so"):
            DdpCheckpointer(self.folder).load_checkpoint()

    def test_without_a_saver_it_is_said_once(self):
        for _ in range(3):
            result = self.save(StorageType.MEMORY)
            self.assertFalse(result)
        self.assertEqual(len(self.said), 1)
        self.assertSaid("DLROVER_CKPT_SOCK is not set")
        self.assertSaid("checkpoints in memory are not kept")
        checkpointer = DdpCheckpointer(self.folder)
        self.assertTrue(checkpointer.wait_latest_checkpoint())
        self.assertEqual(checkpointer.load_checkpoint(), {})
        self.assertEqual(checkpointer.last_load.source, "none")

    def test_an_address_without_a_saver_is_asked_again_later(self):
        os.environ["DLROVER_CKPT_SOCK"] = "@dlrover-none-%d" % os.getpid()
        checkpointer = DdpCheckpointer(self.folder)
        result = checkpointer.save_checkpoint(1, STATE, storage_type=StorageType.MEMORY)
        self.assertIn("cannot connect to the saver", result.error)
        saver = self.reference()
        self.assertFalse(checkpointer.save_checkpoint(2, STATE, storage_type=StorageType.MEMORY))
        checkpointer._saver._not_before = 0
        self.assertTrue(checkpointer.save_checkpoint(3, STATE, storage_type=StorageType.MEMORY))
        self.assertEqual(len(saver.hellos), 1)


class Faults(ClientTest):
    """Whatever the saver answers: no exception, no hang, no half state."""

    def test_every_fault_of_every_reply_of_a_save(self):
        saver = self.reference()
        for kind in ("hello", "alloc", "begin", "commit"):
            for fault in FAULTS:
                if "descriptors" in fault and kind != "alloc":
                    continue
                checkpointer = DdpCheckpointer(os.path.join(self.folder, kind + fault), save_timeout=20)
                saver.faults[kind] = fault
                result = checkpointer.save_checkpoint(1, STATE, storage_type=StorageType.MEMORY)
                self.assertFalse(result, (kind, fault, result))
                self.assertEqual(saver.faults, {}, (kind, fault))
                # Once the pause is over, all is well again.
                checkpointer._saver._not_before = 0
                result = checkpointer.save_checkpoint(2, STATE, storage_type=StorageType.MEMORY)
                self.assertTrue(result, (kind, fault, result))
                same(STATE, checkpointer.load_checkpoint())
                checkpointer.close()

    def test_every_fault_of_a_load(self):
        saver = self.reference()
        DdpCheckpointer(self.folder).save_checkpoint(1, STATE)
        for fault in FAULTS:
            checkpointer = DdpCheckpointer(self.folder, save_timeout=20)
            saver.faults["load"] = fault
            if fault in ("error", "error without text"):
                with self.assertRaises(FlashCheckpointError):
                    checkpointer.load_checkpoint()
                continue
            # One rank looks at the disk; several, of one node too, could then load different steps.
            self.assertEqual(checkpointer.load_checkpoint(), {}, fault)
            self.assertSaid("the saver of this node was lost")
            for local_world in "12":
                saver.faults["load"] = fault
                os.environ.update(RANK="0", WORLD_SIZE="2", LOCAL_WORLD_SIZE=local_world)
                several = DdpCheckpointer(self.folder, save_timeout=20)
                with self.assertRaisesRegex(FlashCheckpointError, "Other ranks may load another step"):
                    several.load_checkpoint()
            for name in ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
                del os.environ[name]

    def test_a_saver_that_hangs_holds_nothing_for_longer_than_the_timeout(self):
        saver = self.reference()
        for kind in ("hello", "alloc", "begin", "commit"):
            checkpointer = DdpCheckpointer(os.path.join(self.folder, kind), save_timeout=0.5)
            saver.faults[kind] = "hang"
            began = time.monotonic()
            result = checkpointer.save_checkpoint(1, STATE, storage_type=StorageType.MEMORY)
            self.assertFalse(result)
            # Half a second, and much for a busy machine; without a deadline it would be for ever.
            self.assertLess(time.monotonic() - began, 60)
            self.assertIn("did not answer %s in time" % kind, result.error)
        checkpointer = DdpCheckpointer(self.folder, save_timeout=0.5)
        saver.faults["wait"] = "hang"
        checkpointer.save_checkpoint(1, STATE)
        original, saver_module._WAIT_GRACE = saver_module._WAIT_GRACE, 0.5
        self.addCleanup(setattr, saver_module, "_WAIT_GRACE", original)
        self.assertFalse(checkpointer.wait_latest_checkpoint(timeout=0.2))

    def test_a_saver_that_may_live_is_not_written_around(self):
        """What it still writes would count instead of the newer step."""
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, save_timeout=0.5)
        self.assertTrue(checkpointer.save_checkpoint(1, STATE))
        saver.faults["begin"] = "hang"
        self.assertIn("did not answer begin in time", checkpointer.save_checkpoint(2, STATE).error)
        # Also while it is not asked.
        self.assertIn("did not answer begin in time", checkpointer.save_checkpoint(3, STATE).error)
        saver.faults["hello"] = "hang"
        checkpointer._saver._not_before = 0
        self.assertIn("did not answer hello in time", checkpointer.save_checkpoint(4, STATE).error)
        checkpointer._saver._not_before = 0
        self.assertTrue(checkpointer.save_checkpoint(5, STATE))
        # A connection that breaks: the saver answers on another one.
        saver.faults["begin"] = "close"
        self.assertIn("the saver closed the connection", checkpointer.save_checkpoint(6, STATE).error)
        self.assertTrue(checkpointer.save_checkpoint(7, STATE))
        self.assertEqual(os.listdir(self.folder), [])
        saver.stop()
        self.assertTrue(checkpointer.save_checkpoint(8, STATE))
        self.assertEqual(sorted(os.listdir(self.folder)), [".dlrover", "8", "dlrover_latest.txt"])

    def test_a_slot_that_is_not_whole_is_not_loaded(self):
        saver = self.reference()
        DdpCheckpointer(self.folder).save_checkpoint(1, STATE)
        slot = saver.shards[(self.folder, 0)].newest()
        os.pwrite(slot.descriptor, b"\xff", 5000)
        checkpointer = DdpCheckpointer(self.folder)
        self.assertEqual(checkpointer.load_checkpoint(), {})
        self.assertSaid("step 1 in memory is damaged: the checksum of header and metadata")
        self.assertEqual(slot.readers, set())

    def test_answers_of_other_types_are_refused(self):
        saver = self.reference()
        for answer in (
            {"source": "memory", "step": 1, "slot": 1, "bytes": 10},
            {"source": "disk", "path": None},
            {"source": "disk", "path": "/nowhere.pt", "step": 3},
            {"source": "?", "reason": "x"},
        ):
            saver.load_answer = dict({"reason": ""}, **answer)
            checkpointer = DdpCheckpointer(self.folder)
            try:
                self.assertEqual(checkpointer.load_checkpoint(), {}, answer)
            except FlashCheckpointError:
                pass


class Calls(ClientTest):
    """Calls in the middle of others."""

    def test_a_signal_handler_is_refused_at_once(self):
        saver = self.reference()
        checkpointer, found = DdpCheckpointer(self.folder, save_timeout=20), []
        self.assertTrue(checkpointer.save_checkpoint(1, STATE))
        saver.faults["begin"] = "hang"

        def handle(*_):
            # As frameworks do when a batch system is about to end them.
            found.append(checkpointer.save_checkpoint(2, STATE).error)
            for call in (checkpointer.load_checkpoint, checkpointer._saver.status):
                with self.assertRaises(errors.UnderWay) as refused:
                    call()
                found.append(str(refused.exception))
            self.assertFalse(checkpointer.wait_latest_checkpoint())
            # The end of the other call.
            saver.release()

        self.addCleanup(signal.signal, signal.SIGUSR1, signal.signal(signal.SIGUSR1, handle))
        main = threading.get_ident()

        def interrupt():
            while saver.requests[-1]["type"] != "begin":
                time.sleep(0.01)
            signal.pthread_kill(main, signal.SIGUSR1)

        saver.requests.clear()
        saver.requests.append({"type": "none"})
        helper = threading.Thread(target=interrupt)
        helper.start()
        self.assertTrue(checkpointer.save_checkpoint(3, STATE))
        helper.join()
        self.assertEqual(len(found), 3)
        for text, what in zip(found, ("save", "load", "send `status` to the saver")):
            self.assertIn("cannot %s in the middle of another call of the same thread" % what, text)
        self.assertEqual(checkpointer.load_checkpoint(), STATE)
        self.assertEqual(len(saver.hellos), 1)

    def test_a_thread_that_waits_holds_others_for_no_longer_than_their_timeout(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder, save_timeout=0.5)
        self.assertTrue(checkpointer.save_checkpoint(1, STATE))
        saver.faults["wait"] = "hang"
        waiter = threading.Thread(target=checkpointer.wait_latest_checkpoint)
        waiter.start()
        while saver.faults:
            time.sleep(0.01)
        result = checkpointer.save_checkpoint(2, STATE)
        self.assertIn("a call of another thread did not end in time", result.error)
        saver.release()
        waiter.join()
        # The connection is as it was.
        self.assertTrue(checkpointer.save_checkpoint(3, STATE))
        self.assertEqual(len(saver.hellos), 1)


class Probe:
    """Looks at the files of a directory while it is saved."""

    def __init__(self, folder):
        self.folder, self.found = folder, []

    def __reduce__(self):
        # It is pickled before there is a file, too.
        for name in os.listdir(self.folder) if os.path.isdir(self.folder) else ():
            # As a saver does that looks for leftovers, in another process.
            with open(os.path.join(self.folder, name), "r+b") as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    self.found.append((name, "free"))
                except BlockingIOError:
                    self.found.append((name, "locked"))
        return str, ()


class Alone(ClientTest):
    def test_a_file_that_is_written_is_locked(self):
        probe = Probe(os.path.join(self.folder, "1"))
        self.assertTrue(DdpCheckpointer(self.folder).save_checkpoint(1, {"probe": probe}))
        self.assertEqual(probe.found, [("rank_0.pt.dlrover-tmp-%d" % os.getpid(), "locked")])
        self.assertEqual(os.listdir(probe.folder), ["rank_0.pt"])

    def test_a_name_that_another_process_has_is_not_taken(self):
        os.mkdir(os.path.join(self.folder, "1"))
        taken = os.path.join(self.folder, "1", "rank_0.pt.dlrover-tmp-%d" % os.getpid())
        with open(taken, "wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b"of another node")
            file.flush()
            self.assertTrue(DdpCheckpointer(self.folder).save_checkpoint(1, STATE))
        with open(taken, "rb") as file:
            self.assertEqual(file.read(), b"of another node")
        same(STATE, DdpCheckpointer(self.folder).load_checkpoint())


class Connections(ClientTest):
    def test_a_forked_child_closes_it_and_the_parent_keeps_it(self):
        saver = self.reference()
        checkpointer = DdpCheckpointer(self.folder)
        checkpointer.save_checkpoint(1, STATE)
        number = checkpointer._saver._connection._socket.fileno()
        link = os.readlink("/proc/self/fd/%d" % number)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                is_open = any(_link(name) == link for name in os.listdir("/proc/self/fd"))
                # A child that saves all the same says hello by itself.
                del saver
                result = DdpCheckpointer(self.folder).save_checkpoint(2, STATE)
                code = 0 if not is_open and result and checkpointer.save_checkpoint(3, STATE) else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertTrue(checkpointer.save_checkpoint(4, STATE))
        self.assertEqual(checkpointer._saver._connection._socket.fileno(), number)

    def test_no_descriptor_is_left(self):
        def count():
            return len(os.listdir("/proc/self/fd"))

        saver = self.reference()
        DdpCheckpointer(self.folder).save_checkpoint(0, STATE)
        before = None
        for step in range(20):
            checkpointer = DdpCheckpointer(self.folder)
            checkpointer.save_checkpoint(step, STATE)
            checkpointer.load_checkpoint()
            saver.faults["alloc"] = ["too many descriptors", "truncated", "two lines"][step % 3]
            other = DdpCheckpointer(self.folder)
            other.save_checkpoint(step, STATE)
            saver.faults.clear()
            checkpointer.close()
            other.close()
            del checkpointer, other
            if step == 2:
                before = count()
        # Threads of the saver may be about to close theirs.
        deadline = time.monotonic() + 10
        while count() > before and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertLessEqual(count(), before)

    def test_a_refusal_that_comes_before_the_request_is_read(self):
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(listener.close)
        listener.bind(self.folder + "/refusing")
        listener.listen()
        client = connection.Connection(self.folder + "/refusing", time.monotonic() + 5)
        self.addCleanup(client.close)
        peer, _ = listener.accept()
        peer.sendall(b'{"type":"error","code":"not_yours","text":"process 7 belongs to user 1"}\n')
        peer.close()
        with self.assertRaisesRegex(errors.SaverRefused, "belongs to user 1"):
            client.request({"type": "hello"}, "welcome", time.monotonic() + 5)

    def test_an_interrupt_ends_the_connection(self):
        ours, theirs = socket.socketpair()
        self.addCleanup(theirs.close)
        peer = connection.Connection.__new__(connection.Connection)
        peer._lock, peer._buffer, peer._socket = call_lock.CallLock(), b"", ours

        def interrupt(*_):
            raise KeyboardInterrupt

        peer._line = interrupt
        with self.assertRaises(KeyboardInterrupt):
            peer.request({"type": "begin"}, "begun", time.monotonic() + 5)
        self.assertTrue(peer.closed)


def _link(name):
    try:
        return os.readlink("/proc/self/fd/" + name)
    except OSError:
        return None


if __name__ == "__main__":
    unittest.main()
