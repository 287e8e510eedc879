module nethttp

go 1.19

require once v0.0.0

replace once => ../../../../middleware/go
