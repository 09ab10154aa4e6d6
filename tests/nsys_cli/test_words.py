"""Of the pages that nsys prints when something fails, the sentence that says why."""

from __future__ import annotations

import pytest

from llmtop.nsys_cli.words import failure_reason

SOURCE = "/dvs/p4/build/sw/devtools/Agora/Rel/CUDA12.4/QuadD/Common"
IMPORTER = """\
Processing [0%            ]\rProcessing [=====100%]

**** Analysis failed with:
Status: TargetProfilingFailed
Props {{
  Items {{
    Type: DeviceId
    Value: "Local (CLI)"
  }}
}}
Error {{
  Type: RuntimeError
  SubError {{
    Type: ProcessEventsError
    {props}
  }}
}}
"""
ERROR_TEXT = """Props {{
      Items {{
        Type: ErrorText
        Value: "{text}"
      }}
    }}"""
THROWN = (
    f"{SOURCE}/ProtobufComm/Common/ProtobufUtils.cpp(73): Throw in function void "
    "QuadDProtobufUtils::ReadMessage(QuadDProtobufUtils::PbCodedIStream&, QuadDProtobufUtils::PbMessageLite&)\\n"
    "Dynamic exception type: boost::wrapexcept<QuadDCommon::ProtobufParseException>\\n"
    "std::exception::what: ProtobufParseException\\n"
)
ORDER = "Wrong event order has been detected when adding events to the collection:\\nnew event ={ StartNs=1 }"


def importer(text: str) -> str:
    return IMPORTER.format(props=ERROR_TEXT.format(text=text))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (importer(THROWN), "ProtobufParseException"),
        (importer(ORDER), "Wrong event order has been detected when adding events to the collection"),
        (importer('no file \\"x\\"'), 'no file "x"'),
        (importer("no room") + "**** Errors occurred while processing the raw events. ****\n", "no room"),
        ("Importer error status: Importation failed.\n" + importer("no room"),
         "Importer error status: Importation failed.; no room"),
        (IMPORTER.format(props=""), "RuntimeError; ProcessEventsError"),
        (
            f"Import Failed with unexpected exception: {SOURCE}/StreamSections/StreamWithSections.cpp(741): Throw "
            "in function void QuadDCommon::parseProtobufFromStream(std::istream&, google::protobuf::Message&)\n"
            "Dynamic exception type: boost::wrapexcept<QuadDCommon::ProtobufParseException>\n"
            "std::exception::what: ProtobufParseException\n"
            "[boost::errinfo_api_function_*] = parseProtobufFromStream\n",
            "Import Failed with unexpected exception; ProtobufParseException",
        ),
        (
            f"{SOURCE}/x.cpp(1): Throw in function f\nstd::exception::what: RuntimeException\n"
            "[QuadDCommon::tag_message*] = database or disk is full\n[boost::errinfo_api_function_*] = f\n",
            "database or disk is full",
        ),
        ("File is corrupted.\n", "File is corrupted."),
        ("[1/1] [====100%] x.nsys-rep\nGenerating '/tmp/x.qdstrm'\n}\n}\n", None),
        ("", None),
        ("\x00" * 9 + '"' * 9 + "{" * 9, None),
    ],
)  # fmt: skip
def test_the_reason_is_one_line_without_blocks(said: str, why: str | None) -> None:
    assert failure_reason(said) == why


def test_it_is_short_however_much_is_said() -> None:
    found = failure_reason(importer("x" * 100_000) + "y" * 100_000)
    assert found is not None
    assert len(found) <= 300
