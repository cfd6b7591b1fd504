"""Whether timm can fetch weights from the hub (huggingface.co), and whether published weights can be fetched (`weights`)."""

import os
import urllib.error
import urllib.request

from pipelines.doctor.deadline import SECONDS, within
from pipelines.doctor.finding import Finding
from pipelines.doctor.machine import Machine

HUB = "https://huggingface.co"
TRUE = ("1", "on", "true", "yes")  # as huggingface_hub reads its switches
FROM_FILE = "give weights that were fetched elsewhere by --checkpoint FILE (`beyondcls encoders` says where they are)"


def check(machine: Machine) -> Finding | None:
    """Whether the hub answers; weights in its cache need no network."""
    if machine.offline:
        return None
    switch = next((n for n in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(n, "").lower() in TRUE), None)
    cache = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    if switch:
        observed = f"{switch}={os.environ[switch]}: timm takes weights from {cache} only"
        return Finding("hub", "note", observed, f"unset {switch} to fetch others, or {FROM_FILE}")
    address = os.environ.get("HF_ENDPOINT") or HUB
    failed = reached(address)
    if not failed:
        return Finding("hub", "ok", f"{address} answers: weights of timm's models can be fetched")
    remedy = (
        f"to extract with timm's weights here, copy {cache} (HF_HOME) from a machine that has them and export HF_HUB_OFFLINE=1"
    )
    return Finding("hub", "note", f"{address} cannot be reached: {failed}", f"{remedy};\nor {FROM_FILE}{advice(failed)}")


def reached(address: str) -> str:
    """Why an address cannot be reached; empty if it answers, even with a refusal. Proxies of the environment are used."""
    try:
        request = urllib.request.Request(address, method="HEAD", headers={"User-Agent": "beyondcls"})
        within(SECONDS, lambda: urllib.request.build_opener().open(request, timeout=SECONDS).close())
    except urllib.error.HTTPError as error:
        return "the proxy wants a password" if error.code == 407 else ""
    except urllib.error.URLError as error:
        return str(error.reason)
    except (OSError, ValueError) as error:  # TimeoutError among them
        return str(error)
    return ""


def advice(failed: str) -> str:
    """Further advice for a failure; empty if there is none."""
    if "CERTIFICATE_VERIFY_FAILED" in failed:
        return "\nif your network has its own certificates, name their file by SSL_CERT_FILE and REQUESTS_CA_BUNDLE"
    if os.environ.get("https_proxy") or os.environ.get("HTTPS_PROXY"):
        return "\nthe environment names a proxy (HTTPS_PROXY): check it"
    return ""
