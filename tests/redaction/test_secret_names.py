"""Classes of values by the names of options, variables and fields."""

from __future__ import annotations

import pytest

from llmtop.redaction.secret_names import Strength, strength_of

NAMES = {
    Strength.SECRET: """
        password --password DB_PASSWORD db.password password2 password_2 PASSWORD_FILE_SECRET passwords
        WANDB_API_KEY --api-key apiKey APIKey api-keys ssh_keys client_secret clientSecret MY_PW MY_TOTP otp
        token --token HF_TOKEN token_value TOKEN_PROD token_id token_value_2 hub-token pass db_pass user-pass pin
        user_pin pin_value session_cookie webhook connection_string conn_str conn_string connectionString
        mypassword userpass dbtoken secretkey webhookurl jwt bearer pass_old token.prod
    """,
    Strength.LIKELY: """
        key keys sort_key sort-keys login user username session auth signature nonce client_id tenant-id appId
        forward_pass first_pass api_tokens user_tokens access code license secretid key2
    """,
    Strength.UNKNOWN: """
        lr learning-rate model value string 123 2 - _ __ password_file token_count api_key_name
        passwords_list max_tokens tokens pad_token eos-token num_tokens next_tokens cpu_pin pin_to pin-to-cpu
        to_pin bypass compass maxtokens embedding_dim key_dim secret_prefix token_type string_value
    """,
    Strength.HASH: """
        commit --commit commits revision --revision rev sha sha256 md5 --sha256 git.commit id run_id run-ids uuid
        gpu_uuid image digest hash index parent version snapshot_version checksum etag commit_ value_id
    """,
}


@pytest.mark.parametrize(("strength", "name"), [(one, name) for one in NAMES for name in NAMES[one].split()])
def test_a_name_has_one_class(strength: Strength, name: str) -> None:
    assert strength_of(name) is strength


@pytest.mark.parametrize("name", ["", " ", "-", "123", "4_2"])
def test_a_name_without_letters_tells_nothing(name: str) -> None:
    assert strength_of(name) is Strength.UNKNOWN


@pytest.mark.parametrize("number", ["1", "_2", "12", "_1_2"])
def test_numbers_at_the_end_do_not_count(number: str) -> None:
    for name in ("api_key", "password", "max_tokens", "login", "token"):
        assert strength_of(name + number) is strength_of(name)
