"""Output that other machines sent: where it is written."""

from __future__ import annotations

from easgd.engines.ray.output_receiver import OutputReceiver


def test_output_goes_to_logs_and_records_to_their_folders(tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    receiver = OutputReceiver(out)
    receiver.deliver([("out-1", b"one\ntw"), ("err-1", b"bad\n"), ("out-1", b"o")])
    receiver.deliver([("records-1-0.jsonl", b"{}\n"), ("centers/b/records-1-0.jsonl", b"[]\n")])
    receiver.deliver([("../outside.jsonl", b"x")])
    receiver.close()
    assert (out / "logs" / "worker-1.log").read_bytes() == b"one\ntwbad\no"
    assert (out / "records-1-0.jsonl").read_text() == "{}\n"
    assert (out / "centers" / "b" / "records-1-0.jsonl").read_text() == "[]\n"
    assert not (tmp_path / "outside.jsonl").exists()
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("[1] one\n[1] two\n", "[1] bad\n")
