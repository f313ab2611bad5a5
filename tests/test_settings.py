"""Settings: the environment goes before the file, the file before the defaults, and everybody knows which it was."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from tenuto.errors import SettingsError
from tenuto.settings import BOUNDS, LATER, Issuer, Settings, load, variable_of

NOWHERE = Path("/nowhere/tenuto.toml")
ISSUER: dict[str, Any] = {
    "issuer": "https://id.example",
    "audience": "tenuto",
    "jwks_url": "https://id.example/keys",
    "tenants": ["acme", "globex"],
    "roles": ["operator", "invoices:approve"],
}
FIELDS = "issuer, audience, jwks_url, jwks_file, tenant_claim, roles_claim, tenant, tenants, roles"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "tenuto.toml"


def test_without_anything_the_defaults_are_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load({})
    assert settings == Settings()
    assert (settings.url, settings.port) == ("sqlite:///tenuto.db", 8080)
    assert {told.source for told in settings.told()} == {"default"}


def test_the_environment_goes_before_the_file_and_the_file_before_the_defaults(file: Path) -> None:
    file.write_text('url = "sqlite:///file.db"\nport = 9000\nqueues = ["a", "b"]\nrate_per_second = 5\n')
    settings = load({"TENUTO_URL": "memory://", "TENUTO_OPEN_ROUTES": "no"}, file)
    assert (settings.url, settings.port, settings.open_routes) == ("memory://", 9000, False)
    assert (settings.queues, settings.rate_per_second) == (("a", "b"), 5.0)
    sources = {told.name: told.source for told in settings.told()}
    assert (sources["url"], sources["port"], sources["host"]) == ("TENUTO_URL", str(file), "default")


def test_what_is_given_goes_before_all() -> None:
    settings = load({"TENUTO_PORT": "1"}, port=2, host=None)
    assert (settings.port, settings.host) == (2, "127.0.0.1")
    assert settings.sources["port"] == "given"


def test_the_file_can_be_named_by_a_variable(file: Path) -> None:
    file.write_text("port = 7000\n")
    assert load({"TENUTO_CONFIG": str(file)}).port == 7000


WRONG = {
    "lease": ["soon", "10ms", "", "1", "1.5"],
    "queues": ["", " , "],
    "egress_allow": ["foo", "10.0.0.0/8, 10.0.0.1/8"],
    "trusted_proxies": ["proxy.example", "10.0.0.1/8"],
    "max_connections_per_address": ["-1"],
    "server": ["127.0.0.1:8080", "sqlite:///tenuto.db", "ftp://tenuto.example"],
    "smtp_url": ["foo", "smtp://", "http://mail.example", "smtp://mail.example:many"],
    "shutdown_grace": ["x"],
    "retention": ["for ever"],
    "slots": ["0", "-5", "many"],
    "port": ["99999", "-1"],
    "traces_sample": ["2", "x"],
    "rate_per_second": ["-1"],
    "tenant_rate_per_second": ["-1", "inf"],
    "tenant_rate_burst": ["0"],
    "max_requests": ["-1"],
    "body_seconds": ["-1", "0", "inf", "nan"],
    "verdict_seconds": ["inf"],
    "key_days": ["-1", "1e3"],
    "log_level": ["loud", "info"],
    "log_format": ["xml"],
    "max_body_bytes": ["0", "1MB"],
    "max_json_depth": ["0", "1001"],
    "max_json_nodes": ["0"],
}


def test_every_number_has_its_bounds() -> None:
    """A new one without them would take `inf` and -1."""
    numbers = {each.name for each in fields(Settings) if type(each.default) in (int, float)}
    assert numbers == set(BOUNDS)


def test_what_cannot_be_meant_is_refused() -> None:
    for name, texts in WRONG.items():
        for text in texts:
            with pytest.raises(SettingsError) as caught:
                load({variable_of(name): text}, None)
            (problem,) = caught.value.problems
            assert problem.path == variable_of(name), (name, text)
    settings = load({"TENUTO_RETENTION": "90d", "TENUTO_MESSAGES": "execution.*, step.failed"})
    assert (settings.retention, settings.messages) == ("90d", ("execution.*", "step.failed"))


@pytest.mark.parametrize("where", ["variable", "file"])
def test_issuers_are_tables(where: str, file: Path) -> None:
    lines = [f"{name} = {json.dumps(value)}" for name, value in ISSUER.items()]
    file.write_text("\n".join(["[[jwt_issuers]]", *lines]) if where == "file" else "")
    environ = {"TENUTO_JWT_ISSUERS": json.dumps([ISSUER])} if where == "variable" else {}
    assert load(environ, file).jwt_issuers == (
        Issuer(**{**ISSUER, "tenants": ("acme", "globex"), "roles": ("operator", "invoices:approve")}),
    )


def test_everything_that_is_wrong_is_told_at_once(file: Path) -> None:
    file.write_text('port = "x"\nprot = 1\nfour_eyes = ["everything"]\n')
    with pytest.raises(SettingsError) as caught:
        load({"TENUTO_SLOTS": "many", "TENUTO_OPEN_ROUTES": "perhaps"}, file)
    told = {(problem.path, problem.code) for problem in caught.value.problems}
    assert told == {
        (f"{file}: prot", "unknown_setting"),
        ("TENUTO_SLOTS", "bad_value"),
        ("TENUTO_OPEN_ROUTES", "bad_value"),
        (f"{file}: port", "bad_value"),
        (f"{file}: four_eyes", "bad_value"),
    }


NAMED = "issuer 1 (https://id.example): "


@pytest.mark.parametrize(
    ("issuer", "told"),
    [
        ({**ISSUER, "jwks_url": "http://id.example/keys"}, NAMED + "jwks_url must begin with https://"),
        ({**ISSUER, "jwks_url": ""}, NAMED + "its keys are missing: give jwks_url or jwks_file"),
        ({**ISSUER, "jwks_file": "k.json"}, NAMED + "jwks_url and jwks_file are both there: give one of them"),
        ({**ISSUER, "audiense": "x"}, NAMED + "there is no field audiense: did you mean audience?"),
        (
            {**ISSUER, "secret": "x"},
            NAMED + f"there is no field secret: fields are {FIELDS}",
        ),
        ({**ISSUER, "audience": ["tenuto"]}, NAMED + "audience must be a string"),
        ({**ISSUER, "tenants": "acme"}, NAMED + "tenants must be a list of strings"),
        (
            {**ISSUER, "tenants": []},
            NAMED + "its tenants are missing: give tenants, a list of those that its tokens may name, "
            "or tenant, a fixed one",
        ),
        ({**ISSUER, "tenant": "acme"}, NAMED + "tenant and tenants are both there: give one of them"),
        (
            {**ISSUER, "roles": []},
            NAMED + "roles is missing: give a list of those that its tokens may have at most",
        ),
        (
            {**ISSUER, "roles": ["root"]},
            NAMED + "'root' is not a role. Roles are viewer, operator, approver, author, worker, admin; "
            "own permissions have a colon: `invoices:approve`",
        ),
        ({**ISSUER, "tenant_claim": ""}, NAMED + "tenant_claim is empty: leave it out, or name a claim"),
        (
            {"issuer": "https://id.example", "tenant": "acme", "roles": ["viewer"]},
            NAMED + "audience is missing: give what its tokens have as aud; "
            "its keys are missing: give jwks_url or jwks_file",
        ),
        (
            {"audience": "tenuto", "jwks_file": "k.json", "tenant": "acme", "roles": ["viewer"]},
            "issuer 1: issuer is missing: give what its tokens have as iss",
        ),
        (
            "https://id.example",
            f"issuer 1: it has fields: {FIELDS}",
        ),
    ],
)
def test_an_issuer_that_cannot_be_trusted_is_refused_in_words(issuer: Any, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"TENUTO_JWT_ISSUERS": json.dumps([issuer])})
    (problem,) = caught.value.problems
    assert (problem.path, problem.message) == ("TENUTO_JWT_ISSUERS", told)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("https://id.example", "must be a JSON list of issuers"),
        (json.dumps(ISSUER), "must be a list of issuers, even for one issuer"),
        (json.dumps([ISSUER, ISSUER]), "duplicate issuer"),
        (json.dumps([ISSUER, {}]), "issuer 2: issuer is missing"),
        (
            json.dumps([ISSUER, {**ISSUER, "issuer": "https://other.example", "tenants": ["*"]}]),
            'https://other.example: tenants has "*", and there are several issuers',
        ),
    ],
)
def test_what_is_no_list_of_issuers_is_told_what_one_is(text: str, told: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"TENUTO_JWT_ISSUERS": text})
    (problem,) = caught.value.problems
    assert problem.message.startswith(told)


def test_the_guide_shows_issuers_as_they_are_read(file: Path) -> None:
    """Both ways say the same, and every field is told."""
    guide = (Path(__file__).parent.parent / "docs" / "guides" / "http.md").read_text(encoding="utf-8")
    (table,) = re.findall(r"```toml\n(\[\[jwt_issuers\]\].*?)```", guide, re.DOTALL)
    (variable,) = re.findall(r"TENUTO_JWT_ISSUERS='(.*?)'", guide, re.DOTALL)
    file.write_text(table)
    (issuer,) = load({}, file).jwt_issuers
    assert load({"TENUTO_JWT_ISSUERS": variable}).jwt_issuers == (issuer,)
    assert all(f"| `{each.name}` |" in guide for each in fields(Issuer))


def test_overrides_of_steps_are_tables_in_the_file_and_json_in_the_variable(file: Path) -> None:
    """As the guide shows them."""
    guide = (Path(__file__).parent.parent / "docs" / "guides" / "sagas.md").read_text(encoding="utf-8")
    (tables,) = re.findall(r"```toml\n(\[step_overrides.*?)```", guide, re.DOTALL)
    (variable,) = re.findall(r"TENUTO_STEP_OVERRIDES='(.*?)'", guide, re.DOTALL)
    file.write_text(tables)
    settings = load({}, file)
    assert dict(settings.step_overrides) == {
        "book-trip.charge": {"timeout": "60s", "retry": {"max_attempts": 5, "initial": "2s"}, "limits": ["bank"]}
    }
    assert load({"TENUTO_STEP_OVERRIDES": variable}).step_overrides == settings.step_overrides
    assert "book-trip.charge" in {told.name: told.value for told in settings.told()}["step_overrides"]


@pytest.mark.parametrize("text", ["{", "[]", '{"a.b": 1}'])
def test_overrides_of_steps_of_another_shape_are_refused(text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load({"TENUTO_STEP_OVERRIDES": text})
    (problem,) = caught.value.problems
    assert "saga.step" in problem.message


@pytest.mark.parametrize("text", ["[", "not toml"])
def test_a_file_that_cannot_be_read_is_said(text: str, file: Path) -> None:
    file.write_text(text)
    with pytest.raises(SettingsError, match="cannot be read"):
        load({}, file)
    with pytest.raises(SettingsError, match="no such file"):
        load({}, NOWHERE)


def test_secrets_are_masked() -> None:
    settings = load({"TENUTO_API_KEY": "tnt_verysecret", "TENUTO_URL": "postgresql://me:hidden@db/x"})
    told = {each.name: each.value for each in settings.told()}
    assert told["api_key"] == "[secret]"
    assert "hidden" not in told["url"]
    assert "db/x" in told["url"]


def test_which_database_it_is_is_told() -> None:
    settings = load({"TENUTO_URL": "postgresql://postgres@127.0.0.1:25726/postgres"})
    told = {each.name: each.value for each in settings.told()}
    assert told["url"] == "postgresql://postgres@127.0.0.1:25726/postgres"


def test_every_setting_has_a_variable_and_says_what_it_is() -> None:
    for told in Settings().told():
        assert told.variable == variable_of(told.name) == f"TENUTO_{told.name.upper()}"
        assert told.doc


def test_a_misspelt_variable_is_told_with_the_name_that_is_meant() -> None:
    misspelt = {"TENUTO_PROT": "1", "TENUTO_EGRES_ALLOW": "10.0.0.0/8", "TENUTO_RETENTON": "7d"}
    with pytest.raises(SettingsError) as caught:
        load(misspelt, port=1)
    told = {problem.path: problem.message for problem in caught.value.problems}
    assert list(told) == sorted(misspelt)
    assert "TENUTO_PORT" in told["TENUTO_PROT"]
    assert "TENUTO_EGRESS_ALLOW" in told["TENUTO_EGRES_ALLOW"]
    assert "TENUTO_RETENTION" in told["TENUTO_RETENTON"]


def test_variables_of_others_are_left_alone() -> None:
    """Of secrets, of the file's name, and what platforms set for a service that is called tenuto."""
    platform = {"TENUTO_SERVICE_HOST": "10.0.0.1", "TENUTO_SERVICE_PORT": "80", "TENUTO_PORT_80_TCP_ADDR": "10.0.0.1"}
    assert load({"TENUTO_SECRET_URL": "x", "TENUTO_SECRET_SERVER_HOSTS": "bank.example", **platform}) == Settings()


@pytest.mark.parametrize("name", LATER)
def test_what_is_not_built_yet_is_not_silently_ignored(file: Path, name: str) -> None:
    file.write_text(f'{name} = "x://"\n')
    for given in ({variable_of(name): "x://"}, {"TENUTO_CONFIG": str(file)}):
        with pytest.raises(SettingsError) as caught:
            load(given)
        assert [problem.code for problem in caught.value.problems] == ["not_built"]
    assert name not in {told.name for told in Settings().told()}


def test_a_misspelt_name_in_the_file_is_told_with_the_one_that_is_meant(file: Path) -> None:
    file.write_text("prot = 1\nwhatever = 1\n")
    with pytest.raises(SettingsError) as caught:
        load({}, file)
    assert [problem.message for problem in caught.value.problems] == [
        "there is no such setting; did you mean port?",
        "there is no such setting",
    ]
