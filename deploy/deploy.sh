#!/bin/sh
# Builds the application and deploys it with the SAM CLI, which it installs. Run
# it at the top of the repository.
#
# The first time SAM asks for the stack's name, region and parameters. It saves
# the answers in samconfig.deploy.toml, a copy of samconfig.toml that is not
# committed, because one person's stack is not another's. Remove the file to be
# asked again. ARCHITECTURE is the processor, arm64 if left out, or x86_64; once
# one is saved, no other.
#
# Then the stack gets the policy in stack-policy.json: no later update may replace
# or remove what has locks or accounts in it.
set -eu

saved=samconfig.deploy.toml
here=functions/internal/samtest
version=$(sed -n 's/^version=\([^ ]*\).*/\1/p' $here/install.sh)
bin=${XDG_CACHE_HOME:-$HOME/.cache}/lambdalock/sam-$version/bin
export SAM_CLI_TELEMETRY=0

give_up() {
	echo "deploy: $1" >&2
	exit 1
}

answered() { grep -qs '^s3_prefix' $saved; } # SAM writes it with the answers

# What is built and what the parameter says must be one processor.
asked=${ARCHITECTURE:-}
case $asked in
"" | arm64 | x86_64) ;;
*) give_up "ARCHITECTURE=$asked; want arm64 or x86_64" ;;
esac
guided=--guided
built=
if answered; then
	guided=
	built=$(sed -n 's/.*Architecture=\\"\([a-z0-9_]*\)\\".*/\1/p' $saved)
fi
if [ -n "$asked" ] && [ "$asked" != "${built:-$asked}" ]; then
	give_up "ARCHITECTURE=$asked, but $saved says $built; remove that file to be asked again"
fi
built=${built:-${asked:-arm64}}

if [ -n "$guided" ] && ! [ -t 0 ]; then
	give_up "the first run asks questions and needs a terminal; nothing was built"
fi

# SAM does not know AWS_REGION, which the functions and make test-aws do.
region=${AWS_DEFAULT_REGION:-${AWS_REGION:-}}
if [ -n "$region" ]; then export AWS_DEFAULT_REGION="$region"; fi

sh $here/install.sh sam

# boto3 looks where SAM will: variables, profiles, single sign-on, a role.
if ! missing=$("$bin/python3" - "$guided" <<'EOF'
import sys, boto3, botocore.exceptions
missing = []
try:
    session = boto3.Session()
    found = session.get_credentials()
    if found is None or not found.get_frozen_credentials().access_key:
        missing.append("credentials")
    if sys.argv[1] and not session.region_name:
        missing.append("a region")
except botocore.exceptions.BotoCoreError as e:
    missing.append("credentials that work (%s)" % e)
print(" and ".join(missing))
sys.exit(bool(missing))
EOF
); then
	cat >&2 <<EOF
deploy: there is nothing to deploy with: AWS needs $missing. Set
  export AWS_REGION=eu-central-1        or another one
  export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...
  export AWS_SESSION_TOKEN=...          if the keys are temporary
The keys come from the AWS console: from the access portal, "Access keys", or
from IAM, Users, Security credentials, Create access key. They have to be allowed
to make everything in template.yaml, roles included. Where the AWS CLI is set up,
export AWS_PROFILE=NAME does instead. Nothing was built.
EOF
	exit 1
fi

# The SAM CLI takes no settings for go build from a template or from samconfig.toml:
# they are in the environment, here and in README.md. Its standard output is
# advice to go on without this script.
CGO_ENABLED=0 GOFLAGS="-trimpath -tags=lambda.norpc '-ldflags=-s -w'" \
	"$bin/sam" build --parameter-overrides "Architecture=$built" >/dev/null

if [ -n "$guided" ]; then
	cp samconfig.toml $saved
	echo "Enter takes the default; without LockStack and LockUrl the locks are in a table of the stack.
The functions are built for $built: leave Architecture as it is. (For another
one stop here and run make deploy ARCHITECTURE=x86_64 or arm64.)"
	"$bin/sam" deploy --guided --config-file $saved --stack-name lambdalock --parameter-overrides "Architecture=$built"
else
	"$bin/sam" deploy --config-file $saved
fi

answered || exit 0 # without the answers the stack's name is not known
name=$(sed -n 's/^stack_name = "\(.*\)"/\1/p' $saved | tail -n 1)
region=$(sed -n 's/^region = "\(.*\)"/\1/p' $saved | tail -n 1)
"$bin/python3" - stack-policy.json "$name" "$region" <<'EOF' || give_up "$name is deployed, but stack-policy.json does not protect it: a later change may replace its tables and its cache"
import sys, boto3, botocore.exceptions
_, policy, name, region = sys.argv
try:
    cloudformation = boto3.client("cloudformation", region_name=region or None)
    cloudformation.set_stack_policy(StackName=name, StackPolicyBody=open(policy).read())
except (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError) as e:
    sys.exit("deploy: %s" % e)
EOF
echo "What is deployed is tested by: make test-aws STACK=$name"
