"""Made-up secrets in the forms in which they are met: what stands around a value, and the value.

Each is (form, value): the form holds the value once as "{}". Values are worked out from the number
of the form, so that each is found in one place only.
"""

from __future__ import annotations

import hashlib
import string
from base64 import b64encode


def _letters(seed: str, size: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    """Letters that look drawn at random and are the same each time; the first is a letter, the
    second a digit."""
    drawn = b"".join(
        hashlib.sha256(f"{seed}{number}".encode()).digest() for number in range(size // 32 + 1)
    )
    mixed = "".join(alphabet[byte % len(alphabet)] for byte in drawn)
    return (mixed[0] if mixed[0].isalpha() else "a") + "7" + mixed[2:size]


def _hex(seed: str, size: int) -> str:
    return hashlib.sha512(seed.encode()).hexdigest()[:size]


def _word(seed: str) -> str:
    """A password as people choose them: words and a number, with no form of its own."""
    return f"maple-{_letters(seed, 6, string.ascii_lowercase)}-41"


_BASE64 = string.ascii_letters + string.digits + "+/"

SHAPES = {
    "an AWS credentials file": ("aws_secret_access_key = {}", _letters("aws", 40, _BASE64)),
    "an AWS session token": ("aws_session_token = {}", _letters("awss", 120, _BASE64)),
    "an AWS key's ID": (
        "id {} end",
        "AKIA" + _letters("akia", 16, string.ascii_uppercase + "234567"),
    ),
    "AWS in an environment": ("AWS_SECRET_ACCESS_KEY={}", _letters("awse", 40, _BASE64)),
    "a bearer": ("Authorization: Bearer {}", _letters("bearer", 43)),
    "a bearer without a header": ("sent with Bearer {} twice", _letters("bearer2", 43)),
    "a basic login": (
        "Authorization: Basic {}",
        b64encode(b"somebody:" + _word("basic").encode()).decode(),
    ),
    "a token in a header": ("Authorization: token {}", _hex("token header", 40)),
    "a key in a header": ("X-Api-Key: {}", _letters("xapi", 32)),
    "a cookie": ("Cookie: sessionid={}", _letters("cookie", 32)),
    "a Google key": ("maps {} end", "AIza" + _letters("gcp", 35)),
    "a Google client secret": ("client {} end", "GOCSPX-" + _letters("gocspx", 28)),
    "a Google access token": ("using {} end", "ya29." + _letters("ya29", 60)),
    "an NVIDIA key": ("pull with {} end", "nvapi-" + _letters("nvapi", 64)),
    "NGC in an environment": ("NGC_CLI_API_KEY={}", _letters("ngc", 84)),
    "PyPI": ("twine {} end", "pypi-AgEIcHlwaS5vcmc" + _letters("pypi", 80)),
    "npm": ("publish {} end", "npm_" + _letters("npm", 36)),
    "npm's file": ("//registry.example/:_authToken={}", _hex("npmrc", 36)),
    "Stripe": ("pay {} end", "sk_live_" + _letters("stripe", 24)),
    "an Azure account": (
        "AccountName=x;AccountKey={};EndpointSuffix=y",
        _letters("azure", 86, _BASE64) + "==",
    ),
    "an Azure SAS": (
        "https://x.blob.example/c?sv=2022-11-02&se=2027-01-01&sig={}",
        _letters("sas", 43) + "%3D",
    ),
    "any key in an environment": ("MY_SERVICE_KEY={}", _letters("mykey", 20)),
    "any password in an environment": ("MYSQL_PWD={}", _word("pwd")),
    "PostgreSQL in an environment": ("PGPASSWORD={}", _word("pg")),
    "any pass in an environment": ("SMTP_PASS={}", _word("smtp")),
    "netrc": ("machine api.example login somebody password {}", _word("netrc")),
    "pgpass": ("db.example:5432:train:somebody:{}", _word("pgpass")),
    "a lower-case token": ("token={}", _letters("lower", 24)),
    "a lower-case secret": ("client_secret: {}", _letters("lowersecret", 32)),
    "a password in YAML": ("db_password: {}", _word("yaml")),
    "a password in JSON": ('{{"password": "{}"}}', _word("json")),
    "a password in escaped JSON": (r"{{\"password\": \"{}\"}}", _word("json2")),
    "a password in XML": ("<password>{}</password>", _word("xml")),
    "name and value in JSON": ('{{"name": "DB_PASSWORD", "value": "{}"}}', _word("k8s")),
    "Sentry": ("https://{}@o1.ingest.example/42", _hex("sentry", 32)),
    "a token in a URL": ("git clone https://{}@git.example/net.git", _letters("url token", 30)),
    "a login in a URL": ("https://somebody:{}@git.example/net.git", _word("login")),
    "a database": ("postgresql://somebody:{}@db.example:5432/train", _word("db")),
    "a Redis without a name": ("redis://:{}@cache.example:6379/0", _word("redis")),
    "a token in a query": ("https://x.example/a?access_token={}", _letters("query", 32)),
    "an option": ("run.py --password {}", _word("option")),
    "an option of a database": ("run.py --db-pass {}", _word("dbpass")),
    "an option with =": ("run.py --api-key={}", _letters("apikey", 24)),
    "curl": ("curl -s -u somebody:{}", _word("curl")),
    "sshpass": ("sshpass -p {} ssh host", _word("sshpass")),
    "mysql": ("mysql -u somebody -p{}", _word("mysql")),
    "Weights & Biases": ("wandb login {}", _hex("wandb", 40)),
    "Weights & Biases in an environment": ("WANDB_API_KEY={}", _hex("wandb env", 40)),
    "Weights & Biases in its file": (
        "machine api.wandb.ai\n  login user\n  password {}",
        _hex("wandb netrc", 40),
    ),
    "Hugging Face": ("pull with {} end", "hf_" + _letters("hf", 34, string.ascii_letters)),
    "GitHub": ("push with {} end", "ghp_" + _letters("ghp", 36)),
    "GitHub, fine-grained": ("push with {} end", "github_pat_" + _letters("pat", 82)),
    "GitLab": ("push with {} end", "glpat-" + _letters("glpat", 20)),
    "Slack": ("post with {} end", "xoxb-123456789012-" + _letters("xoxb", 24)),
    "a Slack webhook": (
        "https://hooks.slack.com/services/T01AB2CD3/B01AB2CD3/{}",
        _letters("slack hook", 24),
    ),
    "a Discord webhook": (
        "https://discord.com/api/webhooks/123456789012345678/{}",
        _letters("discord", 68),
    ),
    "a Telegram bot": ("bot 123456789:{} end", "AA" + _letters("telegram", 33)),
    "a JSON web token": (
        "got {} end",
        "eyJhbGciOiJIUzI1NiJ9.eyJ" + _letters("jwt", 40) + "." + _letters("jwt2", 43),
    ),
    "OpenAI": ("ask with {} end", "sk-proj-" + _letters("openai", 48)),
    "Anthropic": ("ask with {} end", "sk-ant-api03-" + _letters("anthropic", 93) + "AA"),
    "SendGrid": ("mail with {} end", "SG." + _letters("sg", 22) + "." + _letters("sg2", 43)),
    "Databricks": ("submit with {} end", "dapi" + _hex("dapi", 32)),
    "Vault": ("read with {} end", "hvs." + _letters("vault", 96)),
    "Docker's file": (
        '{{"auths": {{"x.example": {{"auth": "{}"}}}}}}',
        b64encode(f"me:{_word('docker')}".encode()).decode(),
    ),
    "Docker Hub": ("pull with {} end", "dckr_pat_" + _letters("dckr", 27)),
    "a kube config": ("    client-key-data: {}", "LS0tLS1CRUdJTi" + _letters("kube", 120, _BASE64)),
    "Datadog, by its name": (
        "datadog_site: {}",
        _letters("datadog", 40, string.ascii_lowercase + string.digits),
    ),
    "a private key": (
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
        "MII" + _letters("pem", 61, _BASE64),
    ),
    "an OpenSSH key": (
        "-----BEGIN OPENSSH PRIVATE KEY-----\n{}\n-----END OPENSSH PRIVATE KEY-----",
        "b3BlbnNzaC1rZXk" + _letters("ssh", 49, _BASE64),
    ),
    "a token in a coloured log": (
        "\x1b[32m{}\x1b[0m",
        "hf_" + _letters("colour", 34, string.ascii_letters),
    ),
    "a token after an escaped line end": (r"first\n{} end", "ghp_" + _letters("escaped", 36)),
}


def said(name: str) -> str:
    """The text with its secret in it."""
    form, value = SHAPES[name]
    return form.format(value)
