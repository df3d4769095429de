"""Checks the templates as CloudFormation gets them: translated by SAM, for several
regions and all combinations of parameters. make lint-template runs it, with cfn-lint
and the SAM translator. It asks no service.

kept.json is the record of what keeps locks or accounts: logical ids, policies, and the
properties that cannot change without a new, empty resource. Change it by hand, and only
after docs/deploy.md, "Changes that lose locks".
"""

import copy
import itertools
import json
import logging
import os
import re
import sys

import boto3
import cfnlint.api
import cfnlint.decode
from cfnlint.schema import PROVIDER_SCHEMA_MANAGER
from samtranslator.parser.parser import Parser
from samtranslator.translator.translator import Translator

HERE = os.path.dirname(os.path.abspath(__file__))
REGIONS = ["us-east-1", "eu-central-1", "ap-southeast-2", "cn-north-1", "us-gov-west-1"]
KEEPS = ["AWS::DynamoDB::Table", "AWS::ElastiCache::ServerlessCache"]
ALIAS = "Aliaslive"
SUBNETS = "subnet-0a1b2c3d,subnet-0a1b2c3e"
KEY = "arn:aws:kms:eu-central-1:123456789012:key/k"
TOPIC = "arn:aws:sns:eu-central-1:123456789012:t"
POLICY = "arn:aws:iam::123456789012:policy/p"

# What each parameter is tried with.
CHOICES = {
    "template.yaml": {
        "LockStack": ["", "locks"], "LockUrl": ["", "dynamodb://mine"], "LockPolicy": ["", POLICY],
        "VpcSubnets": ["", SUBNETS], "VpcGroups": ["", "sg-0a1b2c3d"],
        "Deployment": ["AllAtOnce", "Canary10Percent5Minutes", "Canary10Percent30Minutes", "Linear10PercentEvery1Minute"],
        "Architecture": ["arm64", "x86_64"], "ReservedRuns": ["0", "5"], "AlarmTopic": ["", TOPIC],
    },
    "deploy/table.yaml": {"KeyArn": ["", KEY], "AlarmTopic": ["", TOPIC]},
    "deploy/part.yaml": {"LockStack": ["locks"], "Prefix": ["shop/"], "KeyArn": ["", KEY]},
    "deploy/cache.yaml": {
        "ConnectionType": ["vpc", "public"], "Subnets": ["", SUBNETS], "SecurityGroups": ["", "sg-0a1b2c3d"],
        "ReachSecrets": ["false", "true"], "KeyArn": ["", KEY], "AlarmTopic": ["", TOPIC],
    },
    "examples/own-function/template.yaml": {"Architecture": ["x86_64", "arm64"]},
}
# AWS's own policies that a role may have: the service that takes the role, and why. SAM
# adds them. Any other is refused: these policies are for every resource of an account.
MANAGED = {
    "service-role/AWSLambdaBasicExecutionRole": ("lambda", "writes logs, reads none"),
    "AWSXrayWriteOnlyAccess": ("lambda states", "writes traces, which belong to no resource"),
    "AWSXRayDaemonWriteAccess": ("lambda states", "the same in China and GovCloud"),
    "service-role/AWSLambdaVPCAccessExecutionRole": ("lambda", "network interfaces, which NoNetwork denies to the function's code"),
    "service-role/AWSCodeDeployRoleForLambda": ("codedeploy", "moves an alias; no code of ours has this role"),
}
# The metrics of AWS's services and the dimension by which they are told, from the pages "CloudWatch metrics" of their
# guides. An alarm of a metric that is not there has no data, and no sound.
METRICS = {
    "AWS/Lambda Errors": "FunctionName", "AWS/Lambda Throttles": "FunctionName", "AWS/Lambda Duration": "FunctionName",
    "AWS/ApiGateway 5xx": "ApiId",  # of an HTTP API; a REST API's is 5XXError
    "AWS/SQS ApproximateNumberOfMessagesVisible": "QueueName", "AWS/SQS ApproximateAgeOfOldestMessage": "QueueName",
    "AWS/States ExecutionsFailed": "StateMachineArn", "AWS/States ExecutionsTimedOut": "StateMachineArn",
    "AWS/DynamoDB ReadThrottleEvents": "TableName", "AWS/DynamoDB WriteThrottleEvents": "TableName",
    "AWS/ElastiCache ThrottledCmds": "clusterId", "AWS/ElastiCache BytesUsedForCache": "clusterId",  # of a serverless cache
}
# How many combinations the Rules let through. The others must be refused.
ALLOWED = {"template.yaml": 3 * 2 * 4 * 2 * 2 * 2, "deploy/table.yaml": 4, "deploy/part.yaml": 2, "deploy/cache.yaml": (2 + 1 + 1) * 4, "examples/own-function/template.yaml": 2}


class Wrong(Exception):
    pass


def want(holds, *what):
    if not holds:
        raise Wrong(" ".join(map(str, what)))


def read(text):
    template, problems = cfnlint.decode.decode_str(text)
    want(not problems, problems)
    return json.loads(json.dumps(template, default=str))


def translate(template, region, values):
    template = copy.deepcopy(template)
    for r in template["Resources"].values():  # as sam package does
        for name in ("CodeUri", "DefinitionUri"):
            if name in r.get("Properties", {}):
                r["Properties"][name] = "s3://bucket/key"
    if "Transform" not in template:
        return template
    return Translator({}, Parser(), None, boto3.session.Session(region_name=region)).translate(template, dict(values))


class Stack:
    """A template with values for its parameters and for the functions that need a service."""

    def __init__(self, template, values, region="eu-central-1"):
        self.template = template
        self.values = {name: p.get("Default") for name, p in template.get("Parameters", {}).items()}
        self.values.update({"AWS::Region": region, "AWS::AccountId": "123456789012", "AWS::Partition": "aws", "AWS::StackName": "stack", "AWS::URLSuffix": "amazonaws.com", **values})

    def met(self, name):
        return self.value(self.template["Conditions"][name])

    def value(self, v):
        """What v comes to; None is AWS::NoValue. What only a service knows stays as it is."""
        if isinstance(v, list):
            return [w for w in map(self.value, v) if w is not None]
        if not isinstance(v, dict):
            return v
        if len(v) == 1:
            (name, arg), = v.items()
            if name == "Ref" and (arg == "AWS::NoValue" or arg in self.values):
                return None if arg == "AWS::NoValue" else str(self.values[arg])
            if name == "Condition" and isinstance(arg, str):
                return self.met(arg)
            if name == "Fn::If":
                return self.value(arg[1] if self.met(arg[0]) else arg[2])
            if name == "Fn::Equals":
                return str(self.value(arg[0])) == str(self.value(arg[1]))
            if name == "Fn::Not":
                return not self.value(arg[0])
            if name == "Fn::And":
                return all(self.value(a) for a in arg)
            if name == "Fn::Split":
                return self.value(arg[1]).split(arg[0])
            if name == "Fn::Sub" and isinstance(arg, str):
                return re.sub(r"\$\{([\w:]+)\}", lambda m: str(self.values.get(m[1], m[0])), arg)
        out = {k: self.value(w) for k, w in v.items()}
        return {k: w for k, w in out.items() if w is not None}

    def resources(self):
        return {id: self.value({k: w for k, w in r.items() if k != "Condition"}) for id, r in self.template["Resources"].items() if "Condition" not in r or self.met(r["Condition"])}

    def refused(self):
        return any(
            self.value(rule.get("RuleCondition", True)) and not all(self.value(a["Assert"]) for a in rule["Assertions"])
            for rule in self.template.get("Rules", {}).values()
        )


def kept(resources):
    """What must not change of the resources that keep something."""
    found = {}
    for id, r in resources.items():
        if r["Type"] in KEEPS:
            schema = PROVIDER_SCHEMA_MANAGER.get_resource_schema("us-east-1", r["Type"]).schema
            fixed = schema.get("createOnlyProperties", []) + schema.get("conditionalCreateOnlyProperties", [])
            names = [p.removeprefix("/properties/") for p in fixed] + ["Engine", "AttributeDefinitions", "TimeToLiveSpecification", "DeletionProtectionEnabled"]
            found[id] = {k: r.get(k) for k in ("Type", "DeletionPolicy", "UpdateReplacePolicy")}
            found[id].update({n: r["Properties"][n] for n in names if n in r["Properties"]})
    return found


def check_kept(file, resources, values, record):
    found = kept(resources)
    if file == "deploy/cache.yaml":  # the rest of what is fixed are parameters
        subnets = values["Subnets"].split(",") if values["Subnets"] else [{"Ref": "SubnetA"}, {"Ref": "SubnetB"}]
        network = {"ConnectionType": "public"} if values["ConnectionType"] == "public" else {"SubnetIds": subnets}
        record = {"Cache": {**record["Cache"], **network, **({"KmsKeyId": values["KeyArn"]} if values["KeyArn"] else {})}}
        want("CacheUsageLimits" not in resources["Cache"]["Properties"], "a maximum of the cache removes leases")
    want(found == record, "what keeps locks or accounts has changed:", json.dumps(found, indent=1), "but the record says", json.dumps(record, indent=1))


def mentions(v, names, path=""):
    """Where v refers to one of these resources, by Ref, GetAtt or Sub."""
    if isinstance(v, dict):
        for k, w in v.items():
            yield from mentions(w, names, f"{path}.{k}")
    elif isinstance(v, list):
        for w in v:
            yield from mentions(w, names, path)
    elif isinstance(v, str):
        found = re.findall(r"\$\{(\w+)", v) if ".Fn::Sub" in path else [v] if path.endswith((".Ref", ".Fn::GetAtt")) else []
        yield from ((path, name) for name in found if name in names)


def check_functions(stack, resources):
    """Sources invoke the alias, and roles are allowed what they are for."""
    functions = [id for id, r in resources.items() if r["Type"] == "AWS::Lambda::Function"]
    if "LockUrl" not in stack.values:
        return
    want(len(functions) == 5, functions)
    may = {"AWS::Lambda::Alias", "AWS::Lambda::Version", "AWS::Lambda::EventInvokeConfig", "AWS::CloudWatch::Alarm", "AWS::Logs::MetricFilter"}
    for id, r in stack.template["Resources"].items():
        for path, name in mentions(r, functions):
            want(r["Type"] in may, f"{id}{path} is for {name} and not for its alias")
        if r["Type"] == "AWS::Lambda::EventInvokeConfig":
            want(r["Properties"]["Qualifier"] == "live", id)
    where = "own" if stack.met("OwnTable") else "import" if stack.met("Imports") else "url"
    policy = {"own": [], "import": [{"Fn::ImportValue": "locks-UsePolicy"}], "url": [POLICY]}[where]
    url = {"own": "dynamodb://${LockTable}", "import": {"Fn::ImportValue": "locks-Url"}, "url": "dynamodb://mine"}[where]
    for id in functions:
        p = resources[id]["Properties"]
        want(p["Environment"]["Variables"]["LOCK_URL"] == url, id, p["Environment"])
        want(("VpcConfig" in p) == bool(stack.values["VpcSubnets"]), id, "VpcConfig")
        want(("ReservedConcurrentExecutions" in p) == (id == "LocksFunction" and stack.met("Reserves")), id, "ReservedConcurrentExecutions")
        role = resources[id + "Role"]["Properties"]
        own = [a for a in role["ManagedPolicyArns"] if not isinstance(a, str) or ":aws:policy/" not in a]
        want(own == [*policy, {"Ref": "NoNetwork"}], id, own)
        sids = [s.get("Sid") for p in role["Policies"] for s in p["PolicyDocument"]["Statement"]]
        want(("Locks" in sids) == (where == "own"), id, sids)
        want(resources[id + ALIAS]["Properties"]["Name"] == "live", id)
        group = resources[id + "DeploymentGroup"]["Properties"]
        want(group["DeploymentConfigName"]["Fn::Sub"][1]["ConfigName"] == stack.values["Deployment"], group)
        want(len(group["AlarmConfiguration"]["Alarms"]) == 2, group)


def check_kept_data(resources):
    """Tables are protected, and logs end."""
    for id, r in resources.items():
        p = r["Properties"]
        if r["Type"] == "AWS::DynamoDB::Table":
            want(p.get("DeletionProtectionEnabled") and r.get("DeletionPolicy") == "Retain", id, "can be deleted, with what is in it")
        if r["Type"] == "AWS::Logs::LogGroup":
            want(p.get("RetentionInDays"), id, "keeps its lines for ever")
        if r["Type"] == "AWS::Lambda::Function":
            group = p.get("LoggingConfig", {}).get("LogGroup", {})
            want(resources.get(group.get("Ref"), {}).get("Type") == "AWS::Logs::LogGroup", id, "logs to a group of its own, which keeps its lines for ever")


def check_waiting(file, stack, resources):
    """Requests to the lock service that wait leave the account's other functions most of its runs."""
    if file == "template.yaml" and not stack.met("Reserves"):
        runs = int(stack.values["ApiRate"]) * resources["LocksFunction"]["Properties"]["Timeout"] / 2
        want(runs <= 300, runs, "runs of the lock service may wait at once, of the 1,000 that an account has")


def check_times(stack, resources):
    """Times and counts fit each other, and what AWS says of them."""
    for id, r in resources.items():
        p = r["Properties"]
        if r["Type"] == "AWS::Lambda::Permission" and p["Principal"] == "apigateway.amazonaws.com":
            timeout = resources[p["FunctionName"]["Ref"].removesuffix(ALIAS)]["Properties"]["Timeout"]
            want(timeout < 30, id, "is for", timeout, "s, and an HTTP API waits for 30 s")  # API Gateway, quotas for HTTP APIs
        if r["Type"] != "AWS::Lambda::EventSourceMapping":
            continue
        want(p.get("FunctionResponseTypes") == ["ReportBatchItemFailures"], id, "deletes the failed messages of a batch with the others")
        timeout = resources[p["FunctionName"]["Ref"].removesuffix(ALIAS)]["Properties"]["Timeout"]
        queue = resources[p["EventSourceArn"]["Fn::GetAtt"][0]]["Properties"]
        want("RedrivePolicy" in queue, id, "reads a queue without one for what fails")
        dead = resources[queue["RedrivePolicy"]["deadLetterTargetArn"]["Fn::GetAtt"][0]]["Properties"]
        # "at least six times the function's timeout, plus the value of MaximumBatchingWindowInSeconds" and "maxReceiveCount
        # to at least 5" (Lambda, Using Lambda with Amazon SQS, Configuring a queue)
        want(queue["VisibilityTimeout"] >= 6 * timeout + p.get("MaximumBatchingWindowInSeconds", 0), id, "VisibilityTimeout", queue)
        want(queue["RedrivePolicy"]["maxReceiveCount"] >= 5, id, "maxReceiveCount", queue)
        # "always set the retention period of a dead-letter queue to be longer" (SQS, dead-letter queues)
        want(dead["MessageRetentionPeriod"] > queue["MessageRetentionPeriod"], id, "MessageRetentionPeriod", queue, dead)


def check_alarms(stack, resources):
    """Each alarm notices: its expression is a list of all its metrics, because metric math that takes no list, such as
    a + b, has no value where one of them has none; missing data is harmless; and a share of a function's time is reckoned
    with its Timeout. Somebody makes what it watches, and each metric filter has an alarm."""
    filters = {f"{t['MetricNamespace']} {t['MetricName']}" for r in resources.values() if r["Type"] == "AWS::Logs::MetricFilter" for t in r["Properties"]["MetricTransformations"]}
    watched = set()
    for id, r in resources.items():
        if r["Type"] != "AWS::CloudWatch::Alarm":
            continue
        for m in [r["Properties"], *(m["MetricStat"]["Metric"] for m in r["Properties"].get("Metrics", []) if "MetricStat" in m)]:
            if "MetricName" in m:
                name = f"{m['Namespace']} {m['MetricName']}"
                watched.add(name)
                want(name in filters or METRICS.get(name, "") == m.get("Dimensions", [{}])[0].get("Name"), id, "nobody makes the metric", name)
        want(r["Properties"]["TreatMissingData"] == "notBreaching", id, "TreatMissingData")
        metrics = {m["Id"]: m.get("Expression") for m in r["Properties"].get("Metrics", [])}
        lists = [re.fullmatch(r"(?:SUM|MAX)\(\[([\w/, ]+)\]\)", e) for e in metrics.values() if e]
        want(all(lists), id, metrics)
        terms = [t for found in lists for t in found[1].split(", ")]
        want(sorted(t.partition("/")[0] for t in terms) == sorted(m for m, e in metrics.items() if not e), id, "watches", terms)
        for name, _, divisor in (t.partition("/") for t in terms):
            if divisor not in ("", "60000"):  # milliseconds to minutes
                want(int(divisor) == 10 * resources[name.capitalize() + "Function"]["Properties"]["Timeout"], id, name, "is not ten times its Timeout")
    want(filters <= watched, "no alarm watches", filters - watched)


def policies(r):
    """The policies that a resource has by itself."""
    own, kind = r["Properties"], r["Type"]
    if kind in ("AWS::IAM::Role", "AWS::IAM::User", "AWS::IAM::Group"):
        return own.get("Policies", [])
    return [own] if kind.startswith("AWS::IAM::") and "PolicyDocument" in own else []


def check_policies(stack, resources):
    """No statement allows all actions or, but for the logs of the state machine,
    everything. A role has no policy of AWS's that is not in MANAGED."""
    for id, r in resources.items():
        want(all(p["PolicyDocument"]["Statement"] for p in policies(r)), id, "has a policy without a statement, which IAM refuses")
        for s in (s for p in policies(r) for s in p["PolicyDocument"]["Statement"]):
            if s["Effect"] == "Allow":
                want("Action" in s and "Resource" in s, id, "allows all but something", s)
                actions = s["Action"] if isinstance(s["Action"], list) else [s["Action"]]
                allowed = s["Resource"] if isinstance(s["Resource"], list) else [s["Resource"]]
                want(not any("*" in a for a in actions), id, s)
                want("*" not in allowed or all(a.startswith("logs:") for a in actions), id, s)
        for policy in r["Properties"].get("ManagedPolicyArns", []):
            if isinstance(policy, str) and policy != stack.values.get("LockPolicy"):
                takers = [s["Principal"]["Service"] for s in r["Properties"]["AssumeRolePolicyDocument"]["Statement"]]
                may, _ = MANAGED.get(policy.partition(":iam::aws:policy/")[2], ("", ""))
                want(takers and all(t[0].partition(".")[0] in may.split() for t in takers), id, "has", policy, "and is taken by", takers)
            elif isinstance(policy, dict):
                want(policy.get("Fn::ImportValue") or resources.get(policy.get("Ref"), {}).get("Type") == "AWS::IAM::ManagedPolicy", id, policy)


def check_part(file, stack, resources):
    """A part of a table allows the rows with its prefix, and no prefix has others' rows."""
    if file != "deploy/part.yaml":
        return
    rows = {"ForAllValues:StringLike": {"dynamodb:LeadingKeys": [stack.values["Prefix"] + "*"]}, "Null": {"dynamodb:LeadingKeys": "false"}}
    for s in resources["UsePolicy"]["Properties"]["PolicyDocument"]["Statement"]:
        want(s["Sid"] == "Key" or s["Condition"] == rows, s)
    pattern = stack.template["Parameters"]["Prefix"]["AllowedPattern"]
    for prefix, good in {"shop/": True, "shop-2/": True, "shop": False, "/": False, "*/": False, "sho?/": False, "a/b/": False, "${aws:username}/": False, "": False}.items():
        want(bool(re.fullmatch(pattern, prefix)) == good, f"the prefix {prefix!r} is", "refused" if good else "allowed")


def versions(template, values):
    """What makes a new version: its logical id and its description."""
    out = Stack(translate(template, "eu-central-1", values), values)
    return sorted((id.split("Version")[0], id, r["Properties"].get("Description")) for id, r in out.resources().items() if r["Type"] == "AWS::Lambda::Version")


def check(file, text, record, full=True):
    template = read(text)
    names = list(CHOICES[file])
    allowed = 0
    for chosen in itertools.product(*CHOICES[file].values()):
        values = dict(zip(names, chosen))
        if Stack(template, values).refused():
            continue
        allowed += 1
        few = all(values.get(n) == CHOICES[file][n][0] for n in ("Architecture", "ReservedRuns", "AlarmTopic") if n in values)
        for region in REGIONS if few and full else REGIONS[:1] if full or few else []:
            stack = Stack(translate(template, region, values), values, region)
            resources = stack.resources()
            check_kept(file, resources, values, record)
            check_functions(stack, resources)
            check_policies(stack, resources)
            check_part(file, stack, resources)
            check_kept_data(resources)
            check_waiting(file, stack, resources)
            check_times(stack, resources)
            check_alarms(stack, resources)
    want(allowed == ALLOWED[file], file, "the Rules allow", allowed, "combinations of parameters, not", ALLOWED[file])
    if file == "template.yaml":
        before = versions(template, {})
        for name, value in {"LockStack": "locks", "LockUrl": "redis://x", "LockTtl": "30s", "LockWait": "1s", "Revision": "2", "VpcSubnets": SUBNETS}.items():
            want(not set(before) & set(versions(template, {name: value})), name, "makes no new version, so its value does not reach the alias")


# Changes that must be found: file, text, and what stands there instead.
PLANTED = [
    ("template.yaml", "  LockTable:\n    Type", "  Locks:\n    Type"),
    ("template.yaml", "    DeletionPolicy: Retain\n", "    DeletionPolicy: Delete\n"),
    ("template.yaml", "        - AttributeName: account\n          KeyType", "        - AttributeName: id\n          KeyType"),
    ("template.yaml", "        SfnlockFunction: !Ref SfnlockFunction.Alias", "        SfnlockFunction: !GetAtt SfnlockFunction.Arn"),
    ("template.yaml", "    AutoPublishAlias: live\n    DeploymentPreference:\n      Type: !Ref Deployment\n      Alarms: [!Ref ErrorsAlarm, !Ref LockLostAlarm]\n", ""),
    ("template.yaml", "      VersionDescription: !Sub ${LockStack}", "      VersionDescription: !Sub ${LockTtl}"),
    ("template.yaml", "        - !Ref NoNetwork\n", ""),
    ("template.yaml", "                Effect: Allow\n                Action:\n                  - dynamodb:GetItem", "                Effect: Allow\n                Action:\n                  - dynamodb:*"),
    # as SAM has it for an event: AWS's policy for every queue
    ("template.yaml", "      Timeout: 30\n", "      Timeout: 30\n      Events: {More: {Type: SQS, Properties: {Queue: !GetAtt SettleQueue.Arn}}}\n"),
    ("template.yaml", "      Description: A job on the accounts, once at a time\n", "      Description: x\n      AssumeRolePolicyDocument: {Statement: [{Effect: Allow, Action: sts:AssumeRole, Principal: {Service: [ec2.amazonaws.com]}}]}\n"),
    ("template.yaml", "              Action: dynamodb:UpdateItem\n", "              NotAction: iam:PassRole\n"),
    ("template.yaml", "        AssertDescription: \"LockUrl is set but LockPolicy is not\"", "        AssertDescription: x\n      - Assert: !Equals [!Ref LockUrl, \"\"]\n        AssertDescription: x"),
    ("deploy/table.yaml", "    Type: AWS::DynamoDB::Table\n", "    Type: AWS::DynamoDB::Table\n    Condition: HasKey\n"),
    ("template.yaml", "    Default: 20\n", "    Default: 50\n"),
    ("template.yaml", "FunctionResponseTypes: [ReportBatchItemFailures]", "Enabled: true"),
    ("template.yaml", "VisibilityTimeout: 180", "VisibilityTimeout: 179"),
    ("template.yaml", "      Timeout: 29\n", "      Timeout: 30\n"),
    ("template.yaml", "EventSourceArn: !GetAtt SettleQueue.Arn", "EventSourceArn: !GetAtt NightlyFailures.Arn"),
    ("template.yaml", "SUM([settlements, nights, ends])", "settlements + nights + ends"),
    ("template.yaml", "settle/300", "settle/100"),
    ("template.yaml", "notBreaching", "missing"),
    ("template.yaml", "MetricName: LockDoubt\n      Statistic", "MetricName: LockDoubts\n      Statistic"),
    ("template.yaml", "MetricName: ExecutionsTimedOut", "MetricName: ExecutionTimedOut"),
    ("template.yaml", "- MetricNamespace: !Ref AWS::StackName\n", "- MetricNamespace: locks\n"),
    ("template.yaml", "      LogGroup: !Ref Logs\n", ""),
    ("deploy/part.yaml", "[!Sub \"${Prefix}*\"]", "[\"*\"]"),
    ("deploy/part.yaml", "[a-z0-9][a-z0-9._-]*/", "[a-z0-9*][a-z0-9._-]*/"),
    ("deploy/cache.yaml", "ServerlessCacheName: !Sub ${Name}-locks", "ServerlessCacheName: !Ref Name"),
    ("deploy/cache.yaml", "      UserGroupId: !Ref UserGroup\n", "      UserGroupId: !Ref UserGroup\n      CacheUsageLimits: {DataStorage: {Maximum: 1, Unit: GB}}\n"),
    ("deploy/cache.yaml", "RuleCondition: !Equals [!Ref ConnectionType, public]", "RuleCondition: !Equals [!Ref ConnectionType, private]"),
]


def main():
    logging.disable(logging.CRITICAL)  # the translator talks about its metrics
    with open(os.path.join(HERE, "kept.json")) as f:
        record = json.load(f)
    texts = {}
    for file in CHOICES:
        with open(os.path.join(HERE, "..", file)) as f:
            texts[file] = f.read()
        try:
            check(file, texts[file], record[file])
        except Wrong as e:
            sys.exit(f"{file}: {e}")
    out = json.dumps(translate(read(texts["template.yaml"]), "us-east-1", {}))
    problems = [p for p in cfnlint.api.lint_all(out) if p.rule.id.startswith("E")]
    if problems:
        sys.exit(f"template.yaml, translated: {problems}")
    for file, good, bad in PLANTED:
        if good not in texts[file]:
            sys.exit(f"{file}: no longer has {good!r}")
        text = texts[file].replace(good, bad)
        read(text)  # is a template still
        try:
            check(file, text, record[file], full=False)
        except Wrong:
            continue
        sys.exit(f"{file}: {bad!r} was not found")


if __name__ == "__main__":
    main()
