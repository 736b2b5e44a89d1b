"""Builds templates with the SDK of E2B, unmodified, against a server of Sandpit, and reports on its methods: with "async" as the
argument, on those of the asynchronous classes. The environment says where the server is, which has the base images that are used
here as aliases of one that it has."""

import json
import os
import sys
import time

from report import UNCHECKED, Blocking, Report, since  # which traces from here on

import e2b

asynchronous = sys.argv[1:] == ["async"]
Sandbox, Template = (Blocking(e2b.AsyncSandbox), Blocking(e2b.AsyncTemplate)) if asynchronous else (e2b.Sandbox, e2b.Template)
report = Report(f"e2b (Python{', asynchronous' if asynchronous else ''})", "e2b")
root = os.getuid() == 0  # otherwise sandboxes have no root

for path in "app/sub", "pack":
    os.makedirs(f"context/{path}", exist_ok=True)
for path, text in {"app/a": "A", "app/sub/b": "B", "one": "1", "pack/package.json": '{"name": "pack", "version": "1.0.0"}', "pack/index.js": "console.log(42)"}.items():
    with open(f"context/{path}", "w") as file:
        file.write(text)
if not os.path.lexists("context/app/link"):
    os.symlink("a", "context/app/link")


def begin():
    return Template(file_context_path="context")


def call(method, template, name, **options):
    return getattr(Template, method)(template, **{"name" if since(report.version, "2.14.0") else "alias": name}, **options)


def fails(text, run):
    try:
        run()
    except Exception as error:
        assert text in str(error), error
    else:
        raise AssertionError("no error")


def printed(template, name, command):
    """Builds a template, and returns what a command prints in a sandbox that is made of it."""
    call("build", template, name)
    sbx = Sandbox.create(name, timeout=600)
    try:
        return sbx.commands.run(command).stdout
    finally:
        sbx.kill()


def build():
    lines = []
    template = begin().skip_cache().from_base_image().set_envs({"GREETING": 'hé "llo"'}).set_workdir("/home/user/w").copy("app", "app")
    template = template.copy_items([{"src": "one", "dest": "here/", "mode": 0o600}, {"src": "on*", "dest": "two"}])
    template = template.run_cmd('echo "$GREETING" > out; pwd; id -un').set_user("user")
    final = template.set_start_cmd("echo started > /tmp/started; exec sleep 1000", e2b.wait_for_file("/tmp/started"))
    call("build", final, "one", on_build_logs=lambda entry: lines.append(entry.message))
    assert "/home/user/w" in lines and "user" in lines, lines
    sbx = Sandbox.create("one", timeout=600)
    try:
        run = sbx.commands.run("pwd; cat out app/a app/link app/sub/b here/one two; stat -c %a here/one; cat /tmp/started")
        assert run.stdout == '/home/user/w\nhé "llo"\nAAB11600\nstarted\n', run
        assert sbx.get_info().template_id == "one"
    finally:
        sbx.kill()
    assert Sandbox.list().next_items() == []  # nothing is left of builds
    call("build", begin().from_base_image().set_ready_cmd("true"), "two")

    def cached(**options):
        said = []
        call("build", begin().from_base_image().copy("one", "one").run_cmd("echo again"), "again", on_build_logs=lambda entry: said.append(entry.message), **options)
        return "CACHED [2/2] RUN echo again" in said, "again" in said

    cached()
    assert [cached(), cached(skip_cache=True)] == [(True, False), (False, True)]
    fails("exit status 3", lambda: call("build", begin().from_base_image().run_cmd("echo no; exit 3"), "three"))
    fails("three", lambda: Sandbox.create("three"))
    fails("operator", lambda: call("build", begin().from_base_image(), "base"))


def changes():
    template = begin().from_template("one").make_dir("/home/user/d").rename("/home/user/w/two", "/home/user/d/three")
    template = template.make_symlink("three", "/home/user/d/four").remove("/home/user/w/out")
    assert printed(template, "second", "cat ~/d/four; ls ~/w") == "1app\nhere\n"


def workdir():
    if not root:
        return UNCHECKED
    template = begin().from_base_image().set_workdir("/app").set_workdir("sub").run_cmd("echo x > mine").copy("app", "/other").make_dir("/app/made")
    out = printed(template, "workdir", "pwd; stat -c '%U %n' /app /app/sub/mine /other/a /app/made")
    assert out == "/app/sub\nuser /app\nuser /app/sub/mine\nuser /other/a\nuser /app/made\n", out


def clone():
    template = begin().from_base_image().run_cmd("git init -q ~/source && cd ~/source && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m first")
    assert printed(template.git_clone("/home/user/source", "/home/user/clone"), "cloned", "git -C ~/clone log --format=%s") == "first\n"


def lacks(program):
    """Reports whether the base image lacks a program."""
    return not printed(begin().from_base_image(), "from", f"command -v {program} || true")


def pip():
    """Installs a wheel, which is a zip."""
    if lacks("pip"):
        return UNCHECKED
    files = {"pack.py": "value = 42", "pack-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: pack\nVersion: 1\n", "pack-1.dist-info/RECORD": ""}
    files["pack-1.dist-info/WHEEL"] = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    wheel = "/home/user/pack-1-py3-none-any.whl"
    template = begin().from_base_image().run_cmd(f"python3 -c 'import zipfile\nwith zipfile.ZipFile(\"{wheel}\", \"w\") as z:\n for name, text in {json.dumps(files)}.items(): z.writestr(name, text)'")
    template = template.set_envs({"PIP_NO_INDEX": "1", "PIP_BREAK_SYSTEM_PACKAGES": "1"}).pip_install(wheel, g=False)
    assert printed(template, "installed", "python3 -c 'import pack; print(pack.value)'") == "42\n"


def npm():
    """Installs a directory."""
    if lacks("npm"):
        return UNCHECKED
    template = begin().from_base_image().set_workdir("/home/user/w").copy("pack", "pack").set_envs({"npm_config_offline": "true", "npm_config_audit": "false"}).npm_install("./pack")
    assert printed(template, "installed", """node -e 'require("pack")'""") == "42\n"


def said(program, add):
    """Returns how a program is called in a build, in which a function has its place."""
    function = {f"BASH_FUNC_{program}%%": f'() {{ echo {program} "$@" >> /home/user/said; }}'}
    return printed(add(begin().from_base_image().set_envs(function)), "said", "cat /home/user/said")


def bun():
    assert said("bun", lambda template: template.bun_install(["pack"])) == "bun install pack\n"


def apt():
    if not root:
        return UNCHECKED
    update, install = said("apt-get", lambda template: template.apt_install(["pack"])).splitlines()
    assert update == "apt-get update" and install.startswith("apt-get install -y ") and install.endswith("pack"), (update, install)


def dockerfile():
    template = begin().from_dockerfile('FROM python:3\nENV A=b\nWORKDIR /home/user/docker\nCOPY one .\nRUN echo "$A" > a')
    assert printed(template, "docker", "cat /home/user/docker/a /home/user/docker/one") == "b\n1"


def background():
    info = call("build_in_background", begin().skip_cache().from_base_image().run_cmd("echo seen"), "later")
    while True:
        status = Template.get_build_status(info)
        assert status.status.value != "error", status
        if status.status.value == "ready":
            assert "seen" in [entry.message for entry in status.log_entries]
            return
        time.sleep(0.05)  # the rate of a key is bounded


def exists():
    for method in "exists", "alias_exists":
        if hasattr(e2b.Template, method):
            assert [getattr(Template, method)(name) for name in ("one", "base", "nonesuch")] == [True, True, False]


def tags():
    name = f"tagged-{'async' if asynchronous else 'python'}-{report.version}"  # which no other run has built

    def made(text, template):
        return printed(begin().from_base_image().run_cmd(f"echo {text} > ~/text"), template, "cat ~/text")

    def has(template):
        sbx = Sandbox.create(template, timeout=600)
        try:
            return sbx.commands.run("cat ~/text").stdout
        finally:
            sbx.kill()

    assert made("first", f"{name}:v1") == "first\n"
    fails("tagged", lambda: Sandbox.create(name))  # no build has the tag default
    assert Template.assign_tags(f"{name}:v1", ["production", "default"]).tags == ["production", "default"]
    assert has(name) == "first\n"
    assert made("second", f"{name}:v2") == "second\n"
    assert Template.assign_tags(f"{name}:v2", "production").tags == ["production"]
    assert [has(f"{name}:production"), has(f"{name}:v1"), has(f"{name}:default")] == ["second\n", "first\n", "first\n"]
    if hasattr(e2b.Template, "get_tags"):
        all = Template.get_tags(name)
        assert [t.tag for t in all] == ["default", "production", "v1", "v2"], all
        assert all[0].build_id == all[2].build_id != all[3].build_id == all[1].build_id, all
        assert all[0].created_at.year > 2000, all
        fails("nonesuch", lambda: Template.get_tags("nonesuch"))
    if since(report.version, "2.14.0"):
        call("build", begin().from_base_image().run_cmd("echo third > ~/text"), name, tags=["v3", "default"])
        assert [has(name), has(f"{name}:v3"), has(f"{name}:v1")] == ["third\n", "third\n", "first\n"]
    Template.remove_tags(name, ["v1", "production"])
    fails(":v1", lambda: Sandbox.create(f"{name}:v1"))
    assert has(f"{name}:v2") == "second\n"
    fails("v1", lambda: Template.remove_tags(name, "v1"))
    fails("v1", lambda: Template.assign_tags(f"{name}:v1", "x"))
    fails("a/b", lambda: Template.assign_tags(f"{name}:v2", "a/b"))


def texts():
    assert json.loads(Template.to_json(begin().from_image("x")))["fromImage"] == "x"
    assert Template.to_dockerfile(begin().from_image("x")).startswith("FROM x")


for name, cls in {"Template": e2b.AsyncTemplate if asynchronous else e2b.Template, "TemplateBuilder": type(begin().from_base_image()), "TemplateFinal": type(begin().from_base_image().set_ready_cmd("true"))}.items():
    report.add(name, cls)
B = "TemplateBuilder."
report.works(f"Template.build Template.from_base_image Template.skip_cache {B}set_envs {B}set_workdir {B}copy {B}copy_items {B}run_cmd {B}set_user {B}set_start_cmd {B}set_ready_cmd", build)
report.works(f"Template.from_template {B}remove {B}rename {B}make_dir {B}make_symlink", changes)
report.works(f"{B}set_workdir {B}make_dir {B}copy", workdir)
report.works(f"{B}git_clone", clone)
report.works(f"{B}pip_install", pip)
report.works(f"{B}npm_install", npm)
report.sent(f"{B}bun_install", bun)
report.sent(f"{B}apt_install", apt)
report.works("Template.from_image", lambda: call("build", begin().from_image("python:3").run_cmd("true"), "from"))
for name, variant in {"debian": "stable", "ubuntu": "latest", "python": "3", "node": "lts", "bun": "latest", "fedora": "44", "alpine": "3.24", "arch": "latest"}.items():
    method = f"from_{name}_image"
    report.sent(f"Template.{method}", lambda: call("build", getattr(begin(), method)(variant).run_cmd("true"), "from"))
report.works("Template.from_dockerfile", dockerfile)
report.works("Template.build_in_background Template.get_build_status", background)
report.works("Template.exists Template.alias_exists", exists)
report.works("Template.assign_tags Template.remove_tags Template.get_tags", tags)
report.works("Template.to_json Template.to_dockerfile", texts)
report.works(f"{B}skip_cache", lambda: call("build", begin().from_base_image().skip_cache().run_cmd("true"), "from"))
LACKING = "not supported by this server"
for name, run in {
    "from_aws_registry": lambda: call("build", begin().from_aws_registry("x", "a", "b", "c"), "x"),
    "from_gcp_registry": lambda: call("build", begin().from_gcp_registry("x", {}), "x"),
}.items():
    report.lacks("credentials of registries", f"Template.{name}", lambda run=run: fails(LACKING, run))
report.lacks("the MCP gateway", f"{B}add_mcp_server")
report.lacks("dev containers", f"{B}beta_dev_container_prebuild {B}beta_set_dev_container_start")
report.end()
sys.stdout.flush()
os._exit(0)  # as in scenario.py
