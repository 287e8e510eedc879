import sys,threading,time
sys.path.insert(0,'test/serve')
import test_serve as t, tempfile
s=t.Server(tempfile.mkdtemp(dir='/tmp/h-calls-x')).start()
with t.Client(s) as o, t.Client(s) as c:
    tok=t.call_run(o,"k"); w=t.new_id(); a=[]
    t0=time.time()
    th=threading.Thread(target=lambda:a.append(t.call(c,"k",w,wait_ms=20000))); th.start()
    t.eventually(lambda:t.open_exchanges(s)==2)
    print(o.ask("/v1/abandon",{"id":w}))
    th.join(); print(time.time()-t0,a)
    # the connection of the waiter closed first
    c2=t.Client(s); w=t.new_id()
    import json
    c2.send("/v1/call/begin",json.dumps({"id":w,"group":"charge","key":"k","wait_ms":20000}).encode()+b"\n")
    t.eventually(lambda:t.open_exchanges(s)==2)
    c2.__exit__(); t0=time.time()
    print(o.ask("/v1/abandon",{"id":w}))
    t.eventually(lambda:t.open_exchanges(s)==1); print("call, closed first", time.time()-t0)
s.end()
