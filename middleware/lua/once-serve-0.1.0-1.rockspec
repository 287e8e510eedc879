-- SPDX-License-Identifier: Apache-2.0
package = "once-serve"
version = "0.1.0-1"
source = {url = "."} -- luarocks make, in this folder
description = {
    summary = "The contract of Idempotency-Key for OpenResty, by once serve",
    license = "Apache-2.0"
}
dependencies = {"lua == 5.1"} -- cjson and ngx.resp come with OpenResty
build = {type = "builtin", modules = {once = "once.lua"}}
