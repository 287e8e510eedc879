import sys,threading,time,json
sys.path.insert(0,'test/serve')
import test_serve as t, tempfile
s=t.Server(tempfile.mkdtemp(dir='/tmp/h-calls-x')).start()
with t.Client(s) as o:
    for kind in "call","exchange":
        for closed in False, True:
            if kind=="call": tok=t.call_run(o,kind+str(closed))
            else: tok=t.run(o,kind+str(closed),route={"in_flight":"wait=60s"})
            n=t.open_exchanges(s)
            c2=t.Client(s); w=t.new_id()
            if kind=="call": c2.send("/v1/call/begin",json.dumps({"id":w,"group":"charge","key":kind+str(closed),"wait_ms":20000}).encode()+b"\n")
            else: c2.send("/v1/begin", json.dumps({"id": w, "method": "POST", "target": "/pay?a=1",
            "scope": "ann", "headers": [["Host", "shop.test"], ["Idempotency-Key", kind+str(closed)]],"route":{"in_flight":"wait=60s"}}).encode()+b"\n"+t.BODY)
            t.eventually(lambda:t.open_exchanges(s)==n+1)
            if closed:
                c2.__exit__(); time.sleep(.2)
            t0=time.time()
            print(kind, closed, o.ask("/v1/abandon",{"id":w}))
            while t.open_exchanges(s)!=n and time.time()<t0+5: time.sleep(.05)
            print(t.open_exchanges(s)-n, time.time()-t0)
s.process.kill()
