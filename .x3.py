"""A begin that waits, whose connection is closed, and which is then granted."""
import sys,time,json
sys.path.insert(0,'test/serve')
import test_serve as t, tempfile
s=t.Server(tempfile.mkdtemp(dir='/tmp/h-calls-x')).start()
with t.Client(s) as o:
    tok=t.call_run(o,"k")
    c2=t.Client(s); w=t.new_id()
    c2.send("/v1/call/begin",json.dumps({"id":w,"group":"charge","key":"k","wait_ms":20000,"run_ms":1000,"lease_ms":2000}).encode()+b"\n")
    t.eventually(lambda:t.open_exchanges(s)==2)
    c2.__exit__(); time.sleep(.2)
    o.ask("/v1/abandon",{"token":tok})
    time.sleep(1.5); t0=time.time()
    for i in range(4):
        print(round(time.time()-t0,1), t.call(o,"k")[1], t.open_exchanges(s)); time.sleep(1)
    c3=t.Client(s)
    try: print("repeat", t.call(c3,"k",w,wait_ms=20000,run_ms=1000,lease_ms=2000,again=True))
    except EOFError: print("EOF; server ended with", s.process.wait(5))
s.process.poll() is None and s.process.kill()
