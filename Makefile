# SPDX-License-Identifier: Apache-2.0
#
# The front door. Meson builds (meson.build), nginx's own build system makes the
# module (tools/build-module), tools/test runs every test. Each target installs
# the Debian packages that are missing; PACKAGES=no keeps it from that.

BUILD ?= build
MESON ?= meson
NINJA ?= ninja
PYTHON ?= /usr/bin/python3

# Ninja and Meson have jobs of their own.
MAKEFLAGS += --no-print-directory
.NOTPARALLEL:
.DEFAULT_GOAL := help

.PHONY: help
help:
	@echo 'make run        gateway and sample service on 127.0.0.1:8080'
	@echo 'make check      a slice of the tests, before each commit (minutes)'
	@echo 'make test       every test that needs no more than this machine'
	@echo 'make all        the libraries, the program, the nginx module'
	@echo 'make asan       all of it once more under ASan and UBSan'
	@echo 'make tsan       engine and stores under ThreadSanitizer'
	@echo 'make failing-calls  each allocation, store call, system call fails in turn'
	@echo 'make gateway-faults  faults at moments, in real processes; SEED=1'
	@echo 'make sim        the simulated world; SEEDS=200000'
	@echo 'make mutants    how soon each planted bug is seen, from 30 starts'
	@echo 'make store-faults  faults of real stores, counted; OPS=, SEED=, CELLS='
	@echo 'make faults-messages  the exact ledger under faults; MESSAGES=, CELLS='
	@echo 'make demo       a double charge, without Once and with it'
	@echo 'make demo-messages  orders and bills, without Once and with it'
	@echo 'make bench      figures, side by side with plain nginx; BENCH=--quick'
	@echo '                PEERS="NAME=URL ...": other gateways as well'
	@echo 'make bench-stores  figures of each store by itself'
	@echo 'make bench-messages  what inbox, outbox, relay and consumer cost'
	@echo 'make bench-serve  once serve by itself, and in services'
	@echo 'make bench-operate  how long an operator waits; N=1000000 STORE=journal'
	@echo 'make bench-scale  stores from 1,000 to 10,000,000 records; SCALE=--most=N'
	@echo 'make histories  2,000 concurrent histories of each store, judged'
	@echo 'make model      the formal model, every row of its table (minutes)'
	@echo 'make fuzz       each fuzz target for TIME seconds [600]'
	@echo 'make config-fuzz  drawn configurations of nginx, judged; SEEDS=5000'
	@echo 'make kills-serve  services and their servers, killed; KILLS=1000'
	@echo 'make frameworks  drawn cases of each web framework; CASES=500'
	@echo 'make languages  the scenarios for Express, Go, Java and Lua, too'
	@echo 'make operator-fuzz  drawn days of operators, judged; DAYS=2000 (root)'
	@echo 'make nginx-versions  the gateway on other versions; SOURCES=DIR, SMOKE=yes'
	@echo 'make mysql      store and messages on MySQL, by Debian unstable (root)'
	@echo 'make drivers    messages by each driver of the databases: Java, Go, node'
	@echo 'make coverage   branches of src/calls/core and src/calls/http that tests take'
	@echo 'make style      facts of the house style (make format repairs)'
	@echo 'make docs       links and commands in the pages lead somewhere'
	@echo 'make compilers  gcc and clang, warnings are errors'
	@echo 'make install    libraries, program, module (DESTDIR, PREFIX)'
	@echo 'make deb        Debian packages, in $(BUILD)/deb'
	@echo 'make deb DIST=trixie  in a fresh Debian of that name, in $(BUILD)/deb-trixie'
	@echo 'make deb DIST=trixie ARCH=arm64  the same for another processor'
	@echo 'make arm64-test  unit tests, conformance, gateway under qemu-user (root)'
	@echo 'make image      OCI images of gateway and program, in $(BUILD)/image'
	@echo 'make image-test  runs these images, and builds them once more (root)'
	@echo 'make site       these pages as a site, in $(BUILD)/site'
	@echo 'make clean      removes $(BUILD)/'
	@echo
	@echo 'Missing Debian packages are installed (tools/packages);'
	@echo 'PACKAGES=no keeps them as they are.'

# What building needs is less than what testing needs.
BUILDS = all clean deb deb-test docs help install library packages prefix run
SET ?= $(if $(filter-out $(BUILDS),$(MAKECMDGOALS)),test,run)

.PHONY: packages
packages:
ifneq ($(PACKAGES),no)
	@tools/packages install $(SET)
endif

$(BUILD)/build.ninja: | packages
	@$(MESON) setup $(BUILD)

.PHONY: library
library: packages $(BUILD)/build.ninja
	@test -e $(BUILD)/once || echo 'Building: some minutes the first time.'
	@$(NINJA) -C $(BUILD) --quiet

.PHONY: all
all: library
	@tools/build-module $(BUILD)

.PHONY: run
run: all
	@exec env ONCE_BUILD=$(abspath $(BUILD)) tools/run

# Before each commit: the build with its warnings as errors, unit tests, the
# conformance of the embedded stores, a slice of the simulator, the fuzz corpus,
# a slice of the gateway, style, docs, symbols. `make test` is all of it.
.PHONY: check
check: packages
	@PYTHON=$(PYTHON) $(PYTHON) tools/test --build $(BUILD) --quick

.PHONY: test
test: packages
	@PYTHON=$(PYTHON) $(PYTHON) tools/test --build $(BUILD)

.PHONY: asan
asan: packages
	@PYTHON=$(PYTHON) $(PYTHON) tools/test --build $(BUILD)/asan --sanitize address

.PHONY: tsan
tsan: packages
	@PYTHON=$(PYTHON) $(PYTHON) tools/test --build $(BUILD)/tsan --sanitize thread

.PHONY: histories
histories: library
	@for store in memory engine sqlite journal broken; do \
		$(BUILD)/test/history $$store 2000 || exit 1; done
	@test/lib/with-server postgres -- $(BUILD)/test/history postgres 2000
	@test/lib/with-server mysql -- $(BUILD)/test/history mysql 2000
	@test/lib/with-server redis -- $(BUILD)/test/history redis 2000
	@test/lib/with-server redis-cluster -- $(BUILD)/test/history redis 2000

.PHONY: model
model: packages
	@test/model/run $(BUILD)/model

TIME ?= 600
.PHONY: fuzz
fuzz: all
	@PYTHON=$(PYTHON) tools/fuzz $(BUILD) $(TIME) $(TARGETS)

# SEEDS has another default for `make sim`.
config-fuzz: SEEDS = 5000
.PHONY: config-fuzz
config-fuzz: all
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/configfuzz/run \
		--seeds $(SEEDS) $(FUZZ)

DAYS ?= 2000
.PHONY: operator-fuzz
operator-fuzz: all
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/operatorfuzz/run \
		--days $(DAYS) $(FUZZ)

# The tests of drivers, with those that `make test` skips for want of them.
.PHONY: drivers
drivers: SET = drivers
drivers: packages all
	@$(PYTHON) -m pytest -q test/message/test_drivers.py \
		test/message/test_mysql_drivers.py

.PHONY: coverage
coverage: packages
	@tools/coverage $(BUILD)/coverage

.PHONY: failing-calls
failing-calls: library
	@$(BUILD)/test/failing_calls '' 1
	@test/failing-calls/system-calls \
		$(BUILD)/test/failing_calls_steps --once $(BUILD)/once \
		--seed $(BUILD)/test/cli_seed

# A build of its own, with places at which it kills itself. It need not be fast.
.PHONY: failpoints
failpoints: packages
	@test -e $(BUILD)/failpoints/build.ninja || $(MESON) setup \
		-Doptimization=1 -Ddebug=false -Dc_args=-DONCE_FAILPOINTS \
		$(BUILD)/failpoints >/dev/null
	@$(NINJA) -C $(BUILD)/failpoints --quiet libonce.a once
	@MODULE_CFLAGS='-DONCE_FAILPOINTS -O1 -g0' \
		tools/build-module $(BUILD)/failpoints

SEED ?= 1

.PHONY: gateway-faults
gateway-faults: all failpoints
	@$(PYTHON) test/gateway-faults/run --build $(BUILD) \
		--failing $(BUILD)/failpoints --seed $(SEED) $(FAULTS)

OPS ?= 100000

.PHONY: store-faults
store-faults: library
	@$(PYTHON) test/store-faults/cells.py --build $(BUILD) --ops $(OPS) \
		--seed $(SEED) $(CELLS)

MESSAGES ?= 2000

.PHONY: faults-messages
faults-messages: all
	@$(PYTHON) test/message-faults/cells.py --build $(BUILD) \
		--messages $(MESSAGES) --seed $(SEED) $(CELLS)

# Drawn cases for the middlewares inside of web frameworks.
CASES ?= 500
.PHONY: frameworks
frameworks: SET = drivers
frameworks: packages all
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/frameworks/run \
		--cases $(CASES) $(FRAMEWORKS)

# Services in other languages and their servers, killed again and again.
LANGUAGES ?= python
KILLS ?= 1000
.PHONY: kills-serve
kills-serve: all
	@for language in $(LANGUAGES); do \
		ONCE_BUILD=$(abspath $(BUILD)) ONCE_TARGET=$$language ONCE_KILLS=$(KILLS) \
		$(PYTHON) -m pytest -q -s test/serve/test_kills.py || exit 1; done

# `make test` has Python and Node. These need a Java, a Go and nginx's Lua.
OTHERS ?= express go java java-async lua
.PHONY: languages
languages: SET = drivers
languages: packages all
	@for language in $(OTHERS); do echo "== $$language"; \
		ONCE_BUILD=$(abspath $(BUILD)) ONCE_TARGET=$$language $(PYTHON) -m pytest \
		-q -n 3 --dist loadfile -k 'not memory' test/gateway || exit 1; done
	@cd test/serve/go && ONCE_BUILD=$(abspath $(BUILD)) GOFLAGS=-mod=mod \
		GOPROXY=off go test ./...
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) -m pytest -q test/serve \
		test/examples/test_languages.py

# MySQL itself, in place of MariaDB; MYSQLD names another one than Debian's.
MYSQLD ?= $(BUILD)/mysql/mysqld
.PHONY: mysql
mysql: SET = mysql
mysql: packages all
	@test -x $(MYSQLD) || tools/mysql $(BUILD)/mysql
	@PYTHON=$(PYTHON) test/reach/mysql $(BUILD) $(MYSQLD)

# Each folder of SOURCES is an nginx, an OpenResty or an Angie, not yet built.
.PHONY: nginx-versions
nginx-versions: library
	@PYTHON=$(PYTHON) test/reach/versions $(BUILD) \
		'$(or $(SOURCES),$(error SOURCES=DIR: a folder of source trees))' \
		$(if $(SMOKE),--smoke)

SEEDS ?= 200000

.PHONY: sim
sim: library
	@test/sim/many $(BUILD)/test/sim/sim $(SEEDS) $(FIRST)

.PHONY: mutants
mutants: all
	@env ONCE_BUILD=$(abspath $(BUILD)) test/mutants/run --starts 30

.PHONY: compilers
compilers: packages
	@tools/compilers $(BUILD)

.PHONY: style
style: packages
	@tools/style

.PHONY: docs
docs:
	@tools/check-docs

.PHONY: format
format: packages
	@tools/style --fix

.PHONY: demo
demo: all
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) examples/demo/demo

.PHONY: demo-messages
demo-messages: all
	@ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) examples/messages/demo

.PHONY: bench
bench: all
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/gateway.py \
		$(PEERS:%=--peer %) $(BENCH)

.PHONY: bench-stores
bench-stores: library
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/stores.py \
	    $(BENCH)

.PHONY: bench-messages
bench-messages: all
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/messages.py \
	    $(BENCH)

.PHONY: bench-serve
bench-serve: all
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/serve.py \
	    $(BENCH)

.PHONY: bench-operate
bench-operate: N ?= 1000000
bench-operate: STORE ?= journal
bench-operate: all
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/operate.py \
	    $(N) '$(STORE)'

.PHONY: bench-scale
bench-scale: all
	@env ONCE_BUILD=$(abspath $(BUILD)) $(PYTHON) test/bench/scale.py \
	    $(SCALE)

# Before the build, which writes down what goes where.
.PHONY: prefix
prefix: packages $(BUILD)/build.ninja
	@$(if $(PREFIX),$(MESON) configure $(BUILD) --prefix='$(PREFIX)')

.PHONY: install
install: prefix all
	@DESTDIR=$(if $(DESTDIR),"$$(realpath -ms '$(DESTDIR)')") $(MESON) install -C $(BUILD) --no-rebuild

# With DIST, in a Debian that mmdebstrap makes: bookworm or trixie; with ARCH
# there, for that processor.
DIST ?=
ARCH ?=
.PHONY: deb
deb: SET = $(if $(DIST),systems,deb)
deb: packages
	@$(if $(ARCH),: $(or $(DIST),$(error ARCH= needs DIST=)))
	@tools/deb $(BUILD)/deb$(DIST:%=-%)$(ARCH:%=-%) $(DIST) $(ARCH)

.PHONY: deb-test
deb-test: SET = systems
deb-test: packages
	@DIST=$(DIST) test/packages/run $(BUILD)/deb$(DIST:%=-%) smoke serve http3

.PHONY: arm64-test
arm64-test: SET = systems
arm64-test: DIST = bookworm
arm64-test: packages
	@tools/deb $(BUILD)/deb-$(DIST)-arm64 $(DIST) arm64 >/dev/null
	@test/reach/arm64 $(BUILD) $(DIST)

.PHONY: image
image: SET = image
image: packages
	@tools/deb $(BUILD)/deb-trixie trixie >/dev/null
	@tools/image $(BUILD)/deb-trixie $(BUILD)/image

.PHONY: image-test
image-test: SET = image
image-test: packages
	@PYTHON=$(PYTHON) test/reach/image $(BUILD)

.PHONY: site
site: SET = site
site: packages
	@tools/site $(BUILD)/site

.PHONY: clean
clean:
	rm -rf $(BUILD)
